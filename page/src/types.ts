// The messages of the daemon's API, as far as the page reads them. Integers are nanoseconds where the name says so; null: unknown.

export type Status = "UNKNOWN" | "SYNCHRONIZED" | "HOLDOVER" | "DISRUPTED";
export type Severity = "info" | "warning" | "critical";

export interface Bound {
  bound_ns: number | null;
  growth_ppb: number;
  reason?: string;
  reason_code?: string;
}

export interface Source {
  name: string;
  driver: string;
  reachable: boolean;
  kind: "ptp" | "phc" | "utc" | "kernel" | null;
  detail?: string | null;
  reason?: string | null;
  reason_code: string;
  clock?: string | null;
  port_state: string | null;
  offset_ns: number | null;
  error_ns: number | null;
  path_delay_ns: number | null;
  frequency_ppb: number | null;
  steps_removed: number | null;
  domain?: number | null;
  since_poll_ns?: number | null;
}

export interface BuildInfo {
  version: string;
  commit: string | null;
  python: string;
  node: string;
}

export interface NodeState {
  node: string;
  published_realtime_ns: number;
  age_ns: number | null;
  topology?: string;
  status: Status;
  utc_status: Status;
  reason: string;
  since_realtime_ns: number | null;
  parent: Bound | null;
  gm: Bound | null;
  utc: Bound | null;
  parent_stat: Bound | null;
  gm_stat: Bound | null;
  utc_stat: Bound | null;
  terms: Record<string, number>;
  stat_terms: Record<string, number>;
  rates: Record<string, number>;
  holdover_after_ns: number;
  void_after_ns: number;
  grandmaster_identity: string | null;
  parent_identity: string | null;
  grandmaster: string | null;
  grandmaster_summary: string | null;
  sources: Source[];
  falsetickers: string[];
  sources_contradict: boolean;
  utc_narrowed_by: string[];
}

export interface Satellite {
  number: number;
  cn0_db_hz: number | null;
  healthy: boolean | null;
  azimuth_deg?: number | null;
  elevation_deg?: number | null;
}

export interface Alarm {
  id: number;
  index: number;
  severity: string;
  text: string;
  since: string | null;
}

export interface Port {
  name: string;
  state: string | null;
  enabled: boolean | null;
  profile: string | null;
  domain: number | null;
  clients: number | null;
  max_clients: number | null;
  client_load_percent: number | null;
}

export interface TimeError {
  channel: string;
  metric: string;
  value_ns: number;
  reference: string | null;
  status: string | null;
  alarm_threshold_ns: number | null;
}

export interface Grandmaster {
  node: string;
  name: string;
  published_realtime_ns: number;
  age_ns: number | null;
  reachable: boolean;
  reason: string | null;
  identities: string[];
  profiles: string[];
  unknown: string[];
  model: string | null;
  serial: string | null;
  firmware: string | null;
  oscillator: string | null;
  sys_name: string | null;
  sys_descr: string | null;
  sys_object_id: string | null;
  uptime_s: number | null;
  engine_boots: number | null;
  clock_identity: string | null;
  clock_state: string | null;
  clock_state_since_realtime_ns: number | null;
  phase_offset_ns: number | null;
  clock_class: number | null;
  clock_accuracy: number | null;
  offset_scaled_log_variance: number | null;
  priority1: number | null;
  priority2: number | null;
  domain: number | null;
  utc_offset_s: number | null;
  leap: string | null;
  time_source: number | null;
  time_traceable: boolean | null;
  frequency_traceable: boolean | null;
  steps_removed: number | null;
  selected_reference: string | null;
  references: { name: string; qualification: string }[] | null;
  ports: Port[] | null;
  gnss_state: string | null;
  gnss_position_mode: string | null;
  satellites: Satellite[] | null;
  position: { latitude_deg: number; longitude_deg: number; height_m: number | null } | null;
  antenna: string | null;
  ntp_mode: string | null;
  ntp_stratum: number | null;
  ntp_leap: string | null;
  alarms: Alarm[] | null;
  time_errors: TimeError[] | null;
  sensors: { name: string; value: number | null; unit: string | null; ok: boolean | null }[] | null;
  interfaces: { name: string; up: boolean | null; speed_mbps: number | null }[] | null;
  snmp_error: string | null;
  utc: Bound | null;
  holdover_left_ns: number | null;
  invalid_before_realtime_ns: number | null;
  invalidation_reason: string | null;
  offsets: { other: string; offset_ns: number; bound_ns: number; evidence: string }[];
}

export interface Rank {
  rank: number;
  node: string;
  wait_p50_ns: number | null;
  wait_p99_ns: number | null;
  last_share: number | null;
  lateness_p50_ns: number | null;
  marks_lost: number;
  clock_status: Status;
  idle_share: number | null;
  exposed_p50_ns: number | null;
  staleness_p50: number | null;
}

export interface Straggler {
  rank: number;
  node: string;
  last_share: number;
  lateness_p50_ns: number;
  exposed_ns: number;
  where: string;
  verdict: string;
}

export interface Plan {
  mode: string;
  slack_ns: number;
  guard_ns: number;
  from_step: number;
  reason: string;
  policy: string;
  phase: { period_ns: number; shift_ns: number; hold_share_ppm: number } | null;
  groups: number[][];
}

export interface Job {
  job_id: string;
  job: string;
  attempt: number;
  run: number;
  world_size: number;
  link: string | null;
  published_realtime_ns: number;
  step: number | null;
  steps_complete: number;
  steps_incomplete: number;
  marks_repeated: number;
  marks_refused: number;
  sync_overhead: number | null;
  sync_overhead_step: number | null;
  sync_overhead_epoch: number | null;
  comm_compute: number | null;
  own_overhead: number | null;
  arrival_skew_ns: number | null;
  arrival_skew_p50_ns: number | null;
  arrival_skew_p99_ns: number | null;
  arrival_skew_error_ns: number | null;
  transfer_p50_ns: number | null;
  transfer_p99_ns: number | null;
  barrier_wait_p50_ns: number | null;
  barrier_wait_p99_ns: number | null;
  update_latency_p50_ns: number | null;
  response_p50_ns: number | null;
  response_p99_ns: number | null;
  staleness_p50: number | null;
  staleness_max: number | null;
  last_rank: number | null;
  straggler_rank: number | null;
  stragglers: Straggler[];
  method: string | null;
  clock_bound_ns: number | null;
  trusted: boolean;
  verdict: string;
  alignment_ns: number | null;
  alignment_growth_ppb: number | null;
  alignment_reason: string;
  alignment_pair: string[] | null;
  alignment_holds_for_ns: number | null;
  delays: { from_rank: number; to_rank: number; p50_ns: number; error_ns: number }[];
  groups_reason: string;
  ranks: Rank[];
  plan: Plan;
}

export interface Arrival {
  rank: number;
  clock: string | null;
  arrival_ns: number;
  begin_ns: number;
  end_ns: number;
  error_ns: number | null;
}

export interface Sync {
  step: number;
  sync: number;
  kind: number;
  arrivals: Arrival[];
}

export interface StepMark {
  rank: number;
  step: number;
  arrival_ns: number;
  ready_ns: number | null;
  end_ns: number;
}

export interface Window {
  world_size: number;
  ranks: { rank: number; node: string; marks_lost?: number }[];
  syncs: Sync[];
  steps?: StepMark[];
  next_step: number | null;
}

export interface Finding {
  id: string;
  severity: Severity;
  subject: string;
  since_realtime_ns: number;
  until_realtime_ns: number | null;
  evidence: string;
  cause: string;
  remedy: string;
  chain: { code: string; text: string }[];
}

export interface AlarmEvent {
  node: string;
  incarnation: number;
  sequence: number;
  name: string;
  published_realtime_ns: number;
  action: string;
  severity: string;
  text: string;
  lost: number;
}

export interface Hub {
  node: string;
  published_realtime_ns: number;
  started_realtime_ns: number;
  primary: boolean;
  url: string | null;
  nodes_live: number;
  nodes_known: number;
  nodes_expected: number;
  missing: string[];
  jobs: number;
}

export interface NodeAlignment {
  node: string;
  status: Status;
  bound_ns: number | null;
  reason: string;
}

export interface Alignment {
  published_realtime_ns: number;
  alignment_ns: number | null;
  growth_ppb: number | null;
  holds_for_ns: number | null;
  pair: string[] | null;
  reason: string;
  nodes: NodeAlignment[];
}

export interface FleetSummary {
  published_realtime_ns: number;
  nodes: number;
  statuses: Partial<Record<Status, number>>;
  grandmasters: Record<string, number>;
  worst: NodeAlignment[];
}

export type MapNode = [name: string, status: Status, bound_ns: number | null];

export interface FleetMap {
  published_realtime_ns: number;
  places: Record<string, MapNode[]>;
}

export interface HistoryPoint {
  realtime_ns: number;
  span_s: number;
  count: number;
  minimum: number;
  maximum: number;
  mean: number;
  p50: number;
  p99: number;
}

export interface TimeErrorStep {
  channel: string;
  metric: string;
  realtime_ns: number;
  lowest_ns: number;
  highest_ns: number;
}

export interface CloudEvent {
  id: string;
  source: string;
  type: string;
  subject?: string | null;
  time: string;
  data: Record<string, unknown>;
}

export interface List<T> {
  items: T[];
  next: string | null;
}

export type Verdict = "within" | "exceeded" | "unlimited" | "unknown";

export interface Headline {
  as_of_realtime_ns: number;
  text: string;
  verdict: Verdict;
  limits: { fleet_alignment_ns: number | null; job_alignment_ns: number | null; node_bound_ns: number | null };
  nodes: number;
  compared: number;
  without_bound: number;
  not_compared: number;
  alignment_ns: number | null;
  growth_ppb: number | null;
  holds_for_ns: number | null;
  pair: string[] | null;
  reason: string;
  p50_bound_ns: number | null;
  p99_bound_ns: number | null;
  worst_bound_ns: number | null;
  causes: { kind: string; name: string; nodes: number; of: number; since_realtime_ns: number | null; reason: string }[];
  jobs: { job_id: string; job: string; alignment_ns: number | null; verdict: Verdict; reason: string; without_bound: string[] }[];
  actions: { kind: "drain" | "inspect" | "acknowledge"; text: string; nodes: string[]; subject: string | null; finding: string | null }[];
}

export interface ChainGroup {
  grandmaster: string;
  grandmaster_identity: string;
  parent_identity: string;
  place: string;
  nodes: number;
  without_bound: number;
  bound_ns: number | null;
}

export interface GrandmasterBrief {
  name: string;
  identities: string[];
  reachable: boolean;
  clock_state: string | null;
  gnss_state: string | null;
  antenna: string | null;
  followers: number;
}

export interface JobBrief {
  job_id: string;
  job: string;
  places: Record<string, number>;
}

export interface Overview {
  as_of_realtime_ns: number;
  lag_ns: number | null;
  node: string;
  headline: Headline;
  statuses: Partial<Record<Status, number>>;
  chain: ChainGroup[];
  grandmasters: GrandmasterBrief[];
  jobs: JobBrief[];
  findings: Finding[];
  hubs: Hub[];
  worst: NodeAlignment[];
  simulation: SimulationState | null;
}

export interface SimulationState {
  simulated: string;
  story: string;
  true_offsets: { node: string; offset_ns: number; bound_ns: number | null; is_inside: boolean | null }[];
}

export interface Note {
  id: string;
  kind: "comment" | "deploy" | "acknowledge" | "silence";
  author: string;
  text: string;
  subject: string;
  finding: string | null;
  realtime_ns: number;
  until_realtime_ns: number | null;
}

export interface HandledFinding {
  finding: string;
  subject: string;
  author: string;
  text: string;
  realtime_ns: number;
  until_realtime_ns: number | null;
}

export interface Deviations {
  tau_ns: number;
  adev: number | null;
  tdev_ns: number | null;
  mtie_ns: number | null;
  tdev_low_ns: number | null;
  mtie_low_ns: number | null;
}

export interface LimitVerdict {
  quantity: string;
  source: string;
  outcome: string;
  value_ns: number | null;
  limit_ns: number | null;
  tau_s: number | null;
  reason: string | null;
}

export interface StabilityReport {
  interval_ns: number;
  samples: number;
  gaps: number;
  reference_changes: number;
  longest_run_ns: number;
  max_abs_te_ns: number | null;
  constant_te_ns: number | null;
  worst_constant_te_ns: number | null;
  constant_te_blocks: number;
  max_abs_te_low_ns: number | null;
  range_high_ns: number | null;
  deviations: Deviations[];
  verdicts: { mask: string; outcome: string; limits: LimitVerdict[]; not_compared: string[] }[];
  reasons: Record<string, string>;
}

export interface StabilitySeries {
  channel: string | null;
  report: StabilityReport | null;
  problem: string | null;
  references: string[];
  left_out: string;
}

export interface MaskLimit {
  quantity: string;
  flat_ns: number | null;
  segments: { after_s: number; until_s: number | null; base_ns: number; slope_ns_per_s: number }[];
}

export interface Mask {
  name: string;
  limits: MaskLimit[];
}

export interface StabilityAnswer {
  as_of_realtime_ns: number;
  begin_realtime_ns: number;
  end_realtime_ns: number;
  series: StabilitySeries[];
  problem: string | null;
  peers: string[];
  masks: Mask[];
}
