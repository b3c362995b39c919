"""Readers and generators that yield jobs, and readers that yield clusters.

load_trace("philly")                      a shipped trace, or a file in any of FORMATS
load_cluster("4x8:A100")                  a short spec, a YAML file, or a published machine list
generate("philly", jobs=1000, gpus=64, load=0.9, seed=1)
write_csv(jobs, "mine.csv.gz"), write_jsonl(jobs, "mine.jsonl"), describe(trace)
"""

from __future__ import annotations

from dovetail.traces.clusters import load_cluster as load_cluster
from dovetail.traces.dovetail_csv import write_csv as write_csv
from dovetail.traces.formats import FORMATS as FORMATS
from dovetail.traces.formats import load_trace as load_trace
from dovetail.traces.jsonl import write_jsonl as write_jsonl
from dovetail.traces.shipped import SHIPPED as SHIPPED
from dovetail.traces.summary import Summary as Summary
from dovetail.traces.summary import describe as describe
from dovetail.traces.synthetic import GENERATORS as GENERATORS
from dovetail.traces.synthetic import generate as generate
from dovetail.traces.trace import Trace as Trace
