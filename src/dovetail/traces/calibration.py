"""The distributions behind the generators: tables and fits of published traces, and their sources.

philly        Empirical, from the shipped trace (Jeon et al., ATC 2019; data/NOTICE): jobs by virtual cluster
              and size, quantiles of duration by class of size, median arrivals by hour and mean ones by
              weekday. Mean duration 13,136 s, median 1,144 s, 1.30 GPUs, 93 % on one GPU.
itp           Empirical, from the shipped trace (Gu et al., ElasticFlow, ASPLOS 2023), the same way; its
              tenants are the ten clusters. It has no job under 600 s. Mean 18,722 s, median 10,537 s,
              2.14 GPUs. Its hours count from the start of the trace, whose time of day is unknown.
helios-venus  Fitted to the published summary of the Venus and Saturn clusters (Hu et al., SC 2021; the
helios-saturn HeliosArtifact repository, MIT): mean and median duration, mean GPUs, and GPU time in all.
              Venus: 13,041 s, 204 s, 6.74 GPUs, 98,527 GPU-seconds a job. Saturn: 5,253 s, 124 s, 4.01,
              39,566. Log-normal, clipped at the 50 days of the longest job, with a median that grows by a
              constant factor with each doubling of the size: that factor is what makes GPU time come out.
acme-seren    Fitted in the same way to Seren (Hu et al., NSDI 2024; AcmeTrace, CC-BY-4.0): 1,414 s, 122 s,
              5.68 GPUs, 32,404 GPU-seconds a job, longest 14 days, largest 1,024 GPUs.
pai           Fitted to Alibaba PAI (Weng et al., NSDI 2022) as summarised in AcmeTrace: mean 4,787 s,
              median 481 s, 0.683 GPUs, median half a GPU, at most 8. Duration does not depend on size.

The shipped Philly trace is not all of Philly: AcmeTrace's summary of the whole log has 112,956 jobs, mean
18,006 s, median 874 s, 1.93 GPUs. `philly` follows the trace that is here.

The summaries of the last four give the mean and median size, but no table of sizes. The shares of sizes are
our choice: they reproduce the mean and the median, over half of the jobs take one whole GPU (not in pai), and
these jobs have little of the GPU time. The daily pattern (quiet nights, dips at noon and at six) and the
numbers of tenants and users are our choice too. The choices follow the papers from memory; they were not
checked against them.

tests/traces/recalibrate.py computes the empirical tables again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dovetail.model.units import WHOLE

# The levels of the quantiles below: dense in the tail, which has most of the work.
# fmt: off
GRID = (
    0, 0.01, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.975, 0.98, 0.985,
    0.99, 0.9925, 0.995, 0.9975, 0.999, 0.9995, 0.9999, 1,
)
# fmt: on

# Relative arrivals by hour of the day and by weekday, where a paper describes them but prints no numbers.
_OFFICE_HOURS = (6, 5, 4, 3, 3, 3, 4, 5, 7, 10, 12, 12, 9, 10, 12, 13, 13, 12, 9, 10, 11, 10, 9, 7)
_OFFICE_DAYS = (10, 10, 10, 10, 10, 7, 6)


@dataclass(frozen=True, slots=True)
class Calibration:
    """The distributions of one trace: sizes by tenant, durations by size, arrivals by time, users."""

    mix: Mapping[str, Mapping[int, float]]  # tenant: milli-GPUs: weight
    quantiles: Mapping[int, tuple[int, ...]] = field(default_factory=dict)  # minimum GPUs: seconds at GRID
    centre: float = 0.0  # or log-normal: log of the median seconds of one GPU,
    growth: float = 0.0  # what each doubling of the size adds to it,
    spread: float = 0.0  # the standard deviation,
    longest: float = 0.0  # and the maximum seconds
    hours: tuple[int, ...] = _OFFICE_HOURS  # relative arrivals by hour of the day
    days: tuple[int, ...] = _OFFICE_DAYS  # and by weekday from Monday
    tenants: int = 0  # number of tenants with this mix, by Zipf; 0: the tenants named in it
    users: int = 1  # users of each tenant, by Zipf


def _whole(mix: Mapping[str, Mapping[int, float]]) -> dict[str, dict[int, float]]:
    """The mix in whole GPUs as milli-GPUs."""
    return {tenant: {gpus * WHOLE: weight for gpus, weight in sizes.items()} for tenant, sizes in mix.items()}


# fmt: off
PHILLY = Calibration(
    mix=_whole(
        {"6214e9": {1: 40841, 2: 50, 4: 144, 8: 191},
         "11cb48": {1: 14607, 2: 1415, 4: 40, 8: 10, 16: 19},
         "6c71a0": {1: 9054, 2: 37, 4: 396, 8: 455, 16: 11},
         "b436b2": {1: 7237, 2: 3, 4: 72, 8: 51, 16: 58, 24: 2},
         "103959": {1: 1571, 2: 33, 4: 330},
         "ee9e8c": {1: 597, 2: 109, 4: 266, 8: 420, 16: 96, 24: 1, 32: 13, 64: 6, 128: 3},
         "0e4a51": {1: 1090, 2: 164, 4: 181},
         "ed69ec": {1: 1137},
         "7f04ca": {1: 204, 4: 329, 8: 179, 16: 11},
         "2869ce": {1: 64, 2: 4, 4: 10, 8: 293, 32: 51},
         "e13805": {1: 215, 2: 3, 4: 102, 8: 36, 12: 7, 16: 4, 24: 4, 32: 3},
         "23dbec": {1: 2, 8: 6},
         "51b7ef": {1: 4},
         "795a4c": {1: 3},
         "925e2b": {1: 1, 8: 2}}
    ),
    quantiles={
     1: (1, 30, 52, 62, 69, 76, 215, 600, 1117, 1728, 2464, 3754, 5342, 8512, 11166, 19137, 55518, 68252,
         93428, 135399, 176022, 266914, 430843, 865709, 1447517, 2618276, 3256045),
     2: (2, 5, 9, 11, 13, 15, 17, 19, 21, 25, 33, 149, 22255, 72740, 124488, 197062, 288912, 343862,
         428215, 523316, 621108, 808064, 1264626, 1474215, 1618289, 2389900, 2582803),
     4: (3, 36, 75, 138, 179, 405, 1696, 7468, 17410, 36288, 78660, 106284, 151448, 184435, 196484,
         273968, 499351, 533378, 654304, 907376, 1105898, 1205990, 1706753, 2446301, 2648713, 2730282,
         2750674),
     8: (1, 33, 125, 216, 464, 785, 4011, 12382, 23683, 65014, 140721, 203050, 242252, 351982, 408314,
         525618, 743403, 795161, 926435, 1060498, 1126442, 2000448, 2204885, 2656479, 3011314, 4304844,
         4628226),
     12: (2, 20, 41, 68, 126, 281, 580, 6059, 31183, 70408, 129228, 183528, 235093, 333601, 412471,
          504993, 618922, 649359, 849283, 1121056, 1241557, 1356827, 1530036, 1638400, 1674522, 1703419,
          1710643),
     32: (1, 2, 4, 392, 820, 880, 1258, 2510, 5320, 42987, 47944, 53862, 55864, 59078, 67012, 73136,
          106398, 112940, 119481, 123477, 124839, 126200, 127562, 128379, 128652, 128870, 128924)},
    hours=(13, 10, 11, 12, 11, 12, 16, 17, 14, 13, 10, 8, 8, 9, 8, 9, 10, 12, 12, 10, 9, 12, 12, 14),
    days=(634, 783, 836, 945, 1060, 477, 466),
    users=20,
)

ITP = Calibration(
    mix=_whole(
        {"cluster04": {1: 11924, 2: 125, 4: 532, 8: 2779, 16: 182, 32: 254, 64: 6},
         "cluster08": {1: 12558, 2: 217, 4: 262, 8: 1, 32: 9},
         "cluster07": {1: 9854, 2: 836, 4: 1071, 8: 936, 16: 2},
         "cluster09": {1: 11134},
         "cluster02": {1: 4937, 2: 102, 4: 301, 8: 352, 16: 36, 32: 36, 64: 14},
         "cluster05": {1: 3465, 2: 50, 4: 37, 8: 77},
         "cluster03": {1: 1014, 2: 85, 8: 1777, 16: 94, 32: 24, 64: 17},
         "cluster06": {1: 1073, 2: 6, 4: 148, 8: 1082, 16: 59, 32: 20, 64: 8},
         "cluster01": {1: 1530, 2: 11, 4: 6, 8: 5, 16: 6, 32: 11, 64: 26},
         "cluster10": {1: 193, 2: 51, 4: 14, 16: 2}}
    ),
    quantiles={
     1: (600, 671, 987, 1288, 1803, 2526, 5518, 7558, 10132, 11717, 13572, 16399, 18942, 25322, 26248,
         28837, 51232, 56771, 65265, 84626, 106573, 114939, 175516, 409211, 436014, 490879, 1573360),
     2: (601, 664, 808, 1282, 1976, 2562, 3280, 3754, 4260, 7007, 10017, 26714, 44756, 73510, 103243,
         151328, 277016, 344320, 448969, 646894, 675806, 731924, 832471, 992862, 1046050, 1101120,
         1114383),
     8: (600, 698, 1086, 1975, 3230, 5035, 9638, 13723, 18320, 27463, 40487, 65808, 88721, 130125, 159846,
         207475, 322687, 352946, 403231, 507811, 541647, 665185, 888171, 992627, 1104091, 1232647,
         1237189),
     16: (604, 613, 683, 928, 1298, 2030, 3342, 6322, 31780, 48711, 64724, 90419, 124727, 180777, 256722,
          311900, 370794, 408466, 428889, 443025, 467562, 597786, 598458, 600673, 601412, 602002,
          602150),
     32: (602, 705, 1445, 1919, 2514, 4143, 11912, 32477, 59793, 83601, 108416, 136406, 151270, 208224,
          255826, 287304, 435205, 500717, 534840, 547796, 558667, 650447, 670849, 873848, 948371, 1007989,
          1022894)},
    hours=(44, 43, 58, 50, 58, 28, 30, 26, 23, 24, 23, 26, 20, 24, 22, 20, 20, 20, 34, 34, 27, 41, 42, 40),
    days=(1192, 1357, 1325, 1359, 849, 1084, 970),
    users=20,
)
# fmt: on

HELIOS_VENUS = Calibration(
    mix=_whole({"": {1: 5500, 2: 697, 4: 645, 8: 1790, 16: 736, 32: 425, 64: 157, 128: 36, 256: 13}}),
    centre=5.2542,
    growth=0.0466,
    spread=2.9845,
    longest=4_320_000,
    tenants=25,
    users=8,
)

HELIOS_SATURN = Calibration(
    mix=_whole({"": {1: 6000, 2: 882, 4: 985, 8: 1523, 16: 414, 32: 144, 64: 37, 128: 11, 256: 5}}),
    centre=4.5364,
    growth=0.2819,
    spread=2.7409,
    longest=4_320_000,
    tenants=25,
    users=8,
)

PAI = Calibration(
    mix={"": {100: 30, 200: 50, 250: 220, 500: 300, 1000: 384, 2000: 5, 4000: 5, 8000: 6}},
    centre=6.1752,
    growth=0.0,
    spread=2.1789,
    longest=626_371,
    tenants=40,
    users=32,
)

ACME_SEREN = Calibration(
    mix=_whole(
        {"": {1: 6500, 2: 501, 4: 609, 8: 1952, 16: 208, 32: 105, 64: 53, 128: 32, 256: 22, 512: 11, 1024: 6}}
    ),
    centre=4.5235,
    growth=0.2905,
    spread=2.1625,
    longest=1_209_604,
    tenants=10,
    users=12,
)
