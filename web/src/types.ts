/** What the server, or the data in a static copy, says of the runs and of an episode. */

export interface Shape {
  kind: "plane" | "sphere" | "capsule" | "ellipsoid" | "cylinder" | "box" | "mesh";
  /** -1 is the world. */
  link: number;
  position: [number, number, number];
  /** w, x, y, z. */
  rotation: [number, number, number, number];
  size: number[];
  /** r, g, b, a; null where the robot's file names none. */
  colour: [number, number, number, number] | null;
  /** Whether the name of the link says that it is on the left side. */
  is_left: boolean;
  vertices?: number[];
  faces?: number[];
}

export interface Space {
  kind: "box" | "circle";
  low: number[];
  high: number[];
  grid_shape: number[];
  /** One a feature; a circle has a single one, its heading. */
  names: string[];
}

export interface Evaluation {
  rollouts: number;
  achieved: number;
  /** In C order of the grid. */
  distance: (number | null)[];
  performance: (number | null)[];
}

export interface Run {
  label: string;
  task: string;
  summary: string;
  algo: string;
  env_steps: number | null;
  space: Space;
  d_eval: number;
  step_seconds: number;
  is_real_time: boolean;
  /** Env steps from one pose to the next. */
  stride: number;
  num_steps: number;
  num_links: number;
  shapes: Shape[];
  note: string;
  evaluation: Evaluation | null;
}

export interface Chunk {
  start: number;
  steps: number;
  /** Base64 of little-endian float32, as the two below. */
  poses: string;
  features: string;
  rewards: string;
  end?: "terminated" | "time limit" | "cut";
}

export type Skill = number[];
export type MapMode = "distance" | "performance";
