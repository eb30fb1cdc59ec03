/** The state of the page in the address, so that a link shows the same view: #a=RUN~SKILL~SEED&b=... */

import type { MapMode, Skill } from "./types";

export interface PaneState {
  run: number;
  skill: Skill;
  seed: number;
}

export interface State {
  a: PaneState | null;
  b: PaneState | null;
  map: MapMode;
  speed: number;
  loop: boolean;
  follow: boolean;
  /** Seconds into the episode, in a link that was copied. */
  time: number | null;
}

export const SPEEDS = [0.1, 0.25, 0.5, 1, 2, 4];

export function paneText(pane: PaneState): string {
  return `${pane.run}~${pane.skill.map((value) => +value.toFixed(4)).join(",")}~${pane.seed}`;
}

function readPane(text: string | undefined): PaneState | null {
  const match = text?.match(/^(\d{1,4})~(-?[\d.]+(?:,-?[\d.]+)*)~(\d{1,9})$/);
  if (!match) return null;
  const skill = match[2].split(",").map(Number);
  return skill.every(Number.isFinite) ? { run: Number(match[1]), skill, seed: Number(match[3]) } : null;
}

export function writeAddress(state: State): string {
  const parts = [];
  if (state.a) parts.push(`a=${paneText(state.a)}`);
  if (state.b) parts.push(`b=${paneText(state.b)}`);
  if (state.map !== "distance") parts.push(`map=${state.map}`);
  if (state.speed !== 1) parts.push(`speed=${state.speed}`);
  if (!state.loop) parts.push("loop=0");
  if (!state.follow) parts.push("follow=0");
  if (state.time !== null) parts.push(`t=${state.time.toFixed(2)}`);
  return `#${parts.join("&")}`;
}

export function readAddress(hash: string): State {
  const values = new Map<string, string>();
  for (const part of hash.replace(/^#/, "").split("&")) {
    const [name, value] = part.split("=", 2);
    if (value !== undefined) values.set(name, value.replaceAll("%2C", ",").replaceAll("%7E", "~"));
  }
  const speed = Number(values.get("speed") ?? 1);
  const time = Number(values.get("t") ?? NaN);
  return {
    a: readPane(values.get("a")),
    b: readPane(values.get("b")),
    map: values.get("map") === "performance" ? "performance" : "distance",
    speed: SPEEDS.includes(speed) ? speed : 1,
    loop: values.get("loop") !== "0",
    follow: values.get("follow") !== "0",
    time: Number.isFinite(time) && time >= 0 ? time : null,
  };
}
