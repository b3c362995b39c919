"""Arrays in, arrays out: time shares, fairness and assignment as mathematics, knowing no jobs.

    shares    the problem that all share, and its answer
    classes   equal rows as one row with a count
    lp        level (max-min, makespan, deadlines), total, ratio (cost), finish (finish-time fairness)
    prices    level and finish where all rows differ, with a certified gap
    centre    the same from the middle of the optimal face, by an interior-point method
    filling   water-filling: the level of those who are left, again and again; groups of groups
    columns   pairs that share devices, by column generation
    choose    one configuration for each row under capacities
    matching  least-cost assignment, best pairs
    parts     a large problem cut at random into small ones

Solvers are imported when something is first solved, not before.
"""
