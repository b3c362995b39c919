"""Optimisation on arrays: time shares, fairness and assignment. Nothing here knows of jobs or clusters.

    time_shares      the problem that most solvers take, and its solution
    equal_rows       equal rows as one row with a count
    time_share_lp    level (max-min, makespan, deadlines), total, ratio (cost), finish (finish-time fairness)
    prices           level and finish where all rows differ, with a certified gap
    interior_point   the same objectives, solved to a point inside the optimal face
    water_filling    the level of the rows that can still rise, again and again; groups of groups
    space_sharing    pairs of rows that share devices, by column generation
    multiple_choice  one configuration for each row under capacities
    assignment       least-cost assignment
    partitioned      a large problem, partitioned at random into small ones (POP)
    device_splits    devices split among rows, without time sharing
    priced_schedules one job over time slots: the largest utility minus priced cost
    containers       containers of applications on groups of servers
    highs            HiGHS, with every status checked
    extra            the packages that an installation may be without

Solvers are imported when something is first solved, not before.
"""
