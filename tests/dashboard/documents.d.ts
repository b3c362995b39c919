// Generated from dovetail.client.documents by docs/generate.py.

/** What is held on one node. */
export interface Part {
  node: string;
  devices: number[];
  /** Of each device, in thousandths; nothing: all. */
  share?: number | null;
}

/** The place of a job in its array. */
export interface Member {
  id: string;
  index: number;
}

/** The array that a job stands for in a folded list. */
export interface Members {
  count: number;
  states: Record<string, number>;
  first_started_at: string | null;
}

/** When something will probably happen. */
export interface Span {
  low: string | null;
  likely: string | null;
  high: string | null;
}

/** A job at one moment; in lists long texts are cut and a placement shows its first nodes only. */
export interface Job {
  id: string;
  name: string;
  state: "pending" | "held" | "running" | "stopping" | "completed" | "failed" | "cancelled" | "timeout" | "node-failed" | "out-of-memory" | "refused";
  /** The state as squeue abbreviates it. */
  letter: string;
  /** Why it waits, in a word. */
  reason: string;
  kind: string;
  tenant: string;
  user: string;
  model: string;
  priority: number;
  /** Devices it asks for; an elastic job: the most with which it runs. */
  gpus: number;
  /** The fewest devices with which it runs, if it is elastic; null: it needs all. */
  gpus_least: number | null;
  /** GPUs that it holds now; those of an elastic job change while it runs. */
  gpus_held: number;
  /** The part of each device that it asks for: 0.5 is a half; null without GPUs. */
  gpu_share: number | null;
  nodes: number;
  /** Cores on each node; null: none were asked for. */
  cpus: number | null;
  /** Bytes on each node; null: none were asked for. */
  memory: number | null;
  /** Any of these; none: any. */
  gpu_types: string[];
  time_limit: number | null;
  /** When it was submitted. */
  submitted_at: string;
  /** The job does not start before this moment, if it asked for one. */
  begin_at: string | null;
  /** Since when only resources kept it from its first start; null: something else does. */
  eligible_at: string | null;
  /** Its last start. */
  started_at: string | null;
  first_started_at: string | null;
  ended_at: string | null;
  /** Seconds that it was eligible to run and did not run, so far; after preemptions too. Time held, before its begin time or behind dependencies does not count. */
  waited: number;
  /** When its present wait began; null: it does not wait. */
  waiting_since: string | null;
  /** Seconds from when it became eligible to its first start; null before that. */
  first_start_after: number | null;
  /** Seconds that it ran so far, over all attempts. */
  took: number;
  placement: Part[];
  /** How often it was started. */
  attempt: number;
  restarts: number;
  exit_code: number | null;
  /** How the last attempt ended: exited, stopped, timeout, oom, lost ... */
  cause: string;
  /** The same as a sentence. */
  detail: string;
  array: Member | null;
  /** In a folded list: the whole array that this job stands for. */
  members: Members | null;
  dependency: string | null;
  /** Shell text that it runs, secrets hidden; null: it has a command. This and the next four fields are only in the answer about one job. */
  run?: string | null;
  /** The program and its arguments, secrets hidden; null: it has shell text. */
  command?: string[] | null;
  /** Shell text that each node runs first. */
  setup?: string;
  /** Working directory; empty: a folder of the attempt. */
  workdir?: string;
  /** Variables that it asked for, secrets hidden. */
  env?: Record<string, string>;
  /** Its first output file; only in the answer about one job. */
  output: string | null;
  /** The values it reported last: `step` is the last step it did, `checkpoint_step` the last it saved. */
  progress: Record<string, unknown> | null;
  /** GPUs held times seconds so far, over all attempts. */
  gpu_seconds: number;
  /** Of these, work that was not saved and had to be done again, whether the job was told to stop or failed and was retried. */
  lost_gpu_seconds: number;
  /** When it is expected to end; only in the answer about one job, and while it runs. */
  ends_at: Span | null;
  /** When it has ended by, as the policy promised; only in the answer about one job, until it ends. */
  promised_by: string | null;
}

/** All members of an array at a glance. */
export interface Array {
  id: string;
  count: number;
  states: Record<string, number>;
  name: string;
  tenant: string;
  user: string;
  /** When its first member was submitted. */
  submitted_at: string;
  first_started_at: string | null;
  ended_at: string | null;
  /** GPUs held times seconds so far, over all members. */
  gpu_seconds: number;
  /** Of these, work that was not saved and had to be done again. */
  lost_gpu_seconds: number;
  /** GPUs that its members hold now. */
  gpus_held: number;
  /** Shell text that each member runs; null: a command. Secrets are hidden. */
  run: string | null;
  /** The program and its arguments; null: shell text. */
  command: string[] | null;
  /** Shell text that each node runs first. */
  setup: string;
  /** Working directory; empty: a folder of the attempt. */
  workdir: string;
  /** Variables that were asked for, secrets hidden. */
  env: Record<string, string>;
  /** After an action: how many members it changed. */
  acted?: number | null;
}

/** A job that another one was preempted for. */
export interface Preemptor {
  /** null: jobs of other tenants, taken together. */
  job: string | null;
  user: string | null;
  tenant: string | null;
  /** Whether its priority was higher at that time. */
  higher_priority: boolean;
}

/** One start of a job. */
export interface JobAttempt {
  attempt: number;
  placement: Part[];
  gpu_types: string[];
  /** Seconds that the job waited for this start. */
  waited: number;
  /** When it was started. */
  started_at: string;
  ended_at: string | null;
  /** Seconds that it ran so far. */
  took: number;
  exit_code: number | null;
  cause: string;
  detail: string;
  /** The jobs that it made way for, as far as is known. */
  preempted_by: Preemptor[];
}

/** A resource of which a job needs more than is free. */
export interface Short {
  resource: "gpus" | "cpus" | "memory";
  /** For each task: GPUs, cores or bytes. */
  asked: number;
  /** On all nodes that the job could use. */
  free: number;
  /** On one of them. */
  most: number;
  /** That one. */
  node: string;
}

/** A job that holds what a waiting job is short of. */
export interface Holder {
  /** null: jobs that are not listed, taken together. */
  job: string | null;
  tenant: string | null;
  /** How many jobs this row stands for. */
  jobs: number;
  /** Whether these are jobs of tenants that this token does not see. */
  hidden: boolean;
  gpus: number;
  cpus: number;
  /** Bytes. */
  memory: number;
  ends_at: string | null;
  /** What its end rests on. */
  estimate: "given" | "limit" | "history" | "assumed" | null;
}

/** Something that lets the job start. The plane has tried it on a copy of its state. */
export interface Remedy {
  kind: "release" | "resubmit" | "cancel" | "priority" | "resume" | "tenant" | "wait";
  /** The same in words. */
  text: string;
  by: "user" | "admin";
  /** resubmit: cancel the job, then submit its request with these keys in place of its own. */
  ask: Record<string, unknown> | null;
  /** cancel: these jobs. */
  jobs: string[];
  /** resume: these nodes. */
  nodes: string[];
  /** tenant: which. */
  tenant: string | null;
  /** tenant: its quota. */
  quota: number | null;
  /** tenant: its limit. */
  limit: number | null;
  /** priority: of the job. */
  priority: number | null;
  /** wait: until then, if the jobs that run end as estimated. */
  at: string | null;
  /** How many running jobs are preempted for it. */
  preempts: number;
}

/** Jobs that the policy considers before this one. */
export interface Ahead {
  /** Those that this token may see. */
  own: number;
  /** Whether there are more. */
  others: boolean;
}

/** Why a job waits, which jobs hold what it needs, and what would let it start. */
export interface Why {
  job: string;
  state: "pending" | "held" | "running" | "stopping" | "completed" | "failed" | "cancelled" | "timeout" | "node-failed" | "out-of-memory" | "refused";
  reason: string;
  sentence: string;
  /** The resources that are short. */
  short: Short[];
  /** The rule of the policy that holds it back, if one does. */
  rule: string;
  /** The job that it must not delay, if this token may see it. */
  behind: string | null;
  /** The jobs that hold what is short, the first to end first. */
  holders: Holder[];
  /** The remedies in words, but for waiting. */
  remedy: string;
  /** What lets it start. Each was tried. */
  remedies: Remedy[];
  /** Remedies were not tried: too many questions with this token. Ask again in so many seconds. */
  remedies_in: number | null;
  /** What the times rest on, where users gave no estimate. */
  assumed: string;
  /** How long it is expected to run, in seconds. */
  estimate: number | null;
  estimate_source: "given" | "limit" | "history" | "assumed" | null;
  starts_at: Span | null;
  /** When it is expected to end, whether it waits or runs. */
  ends_at: Span | null;
  /** The job does not start before this moment, if it asked for one. */
  begin_at: string | null;
  ahead: Ahead;
  /** The jobs that it made way for, if it waits since it was preempted. */
  preempted_by: Preemptor[];
}

/** GPUs on one node of a plan. */
export interface Place {
  node: string;
  gpus: number;
}

/** Where and about when a job would start. */
export interface Plan {
  /** False: not now, because nodes that it needs are out of service, or refused. */
  fits: boolean;
  starts_at: Span | null;
  /** If it said how long it takes. */
  ends_at: Span | null;
  placement: Place[];
  /** Jobs that this token may see. */
  preempts: string[];
  /** How many more. */
  preempts_others: number;
  cost: number | null;
  /** What else there is to know, a line each. */
  notes: string[];
  /** The moment by which the policy would promise its end. */
  promised_by: string | null;
  /** Why the policy would refuse it; empty if it would not. */
  refused: string;
  /** Why it does not fit now; empty if it does. */
  detail: string;
}

/** A node and what is free on it. */
export interface Node {
  name: string;
  type: string;
  gpus: number;
  /** GPUs, whole ones. */
  free: number;
  state: "up" | "drained" | "lost" | "off";
  reason: string;
  cpus: number;
  /** Bytes. */
  memory: number;
  /** Those that this token may see. */
  jobs: string[];
  /** How many more jobs run there. */
  others: number;
}
