/** One robot and what is measured of it: a view, the numbers, and the timeline of features. */

import type { PaneState } from "./address";
import { element, setText } from "./dom";
import { Episode } from "./episode";
import type { Source } from "./source";
import { cellCentre, clampSkill, distance, format, formatSkill, shortName, shownRange, shownValues } from "./space";
import { AXIS_HEIGHT, ROW_HEIGHT, Timeline } from "./timeline";
import type { Run, Skill } from "./types";
import { View } from "./view";

export interface PaneEvents {
  /** Another run, skill or start is wanted. */
  asked(): void;
  /** A new episode begins. */
  started(): void;
  /** The user turned to this pane. */
  activated(pane: Pane): void;
  seek(seconds: number): void;
}

interface Gauge {
  fill: HTMLElement;
  target: HTMLElement;
  value: HTMLElement;
}

export class Pane {
  readonly root: HTMLElement;
  episode: Episode | null = null;
  state: PaneState;
  private readonly view: View | null;
  private readonly timeline: Timeline;
  private readonly timelineCanvas = element("canvas", "timeline", "", { "aria-label": "Features over time; click to seek" });
  private readonly select = element("select", "run", "", { "aria-label": "Run" });
  private readonly skillText = element("span", "skill");
  private readonly seedButton = element("button", "seed", "", { title: "Execute the skill from another start (R)" });
  private readonly message = element("div", "message", "", { role: "status" });
  private readonly gaugeBox = element("div", "gauges");
  private readonly numbers = { total: element("b"), time: element("b"), gap: element("b"), verdict: element("span", "verdict") };
  private gauges: Gauge[] = [];
  private request: AbortController | null = null;
  private shown = "";
  private shownEpisode: Episode | null = null;

  constructor(
    readonly key: "a" | "b", private readonly runs: Run[], private readonly source: Source, private readonly events: PaneEvents,
  ) {
    this.state = { run: 0, skill: defaultSkill(runs[0]), seed: source.seed ?? 0 };
    const canvas = element("canvas", "view", "", { "aria-label": `Animation ${key.toUpperCase()}; drag to turn, scroll to zoom` });
    const header = element("header");
    runs.forEach((run, i) => this.select.append(element("option", "", `${run.label}`, { value: String(i) })));
    header.append(element("span", "badge", key.toUpperCase()), this.select, this.skillText, this.seedButton);
    const stage = element("div", "stage");
    stage.append(canvas, this.message);
    this.root = element("section", `pane pane-${key}`, "", { "aria-label": `Pane ${key.toUpperCase()}` });
    this.root.append(header, stage, this.gaugeBox, this.makeNumbers(), this.timelineCanvas);
    this.timeline = new Timeline(this.timelineCanvas, key, (seconds) => events.seek(seconds));
    this.select.addEventListener("change", () => this.ask({ run: Number(this.select.value) }));
    this.seedButton.addEventListener("click", () => this.newSeed());
    this.seedButton.hidden = source.seed !== null;
    this.root.addEventListener("pointerdown", () => events.activated(this));
    this.root.addEventListener("focusin", () => events.activated(this));
    this.view = makeView(canvas);
    if (!this.view) this.say("This browser offers no WebGL: numbers and timeline work, the animation does not.", true);
  }

  get run(): Run {
    return this.runs[this.state.run];
  }

  get isComplete(): boolean {
    return this.episode?.end !== undefined || this.root.dataset.state === "failed";
  }

  set follow(follow: boolean) {
    if (this.view) this.view.follow = follow;
  }

  frame(): void {
    this.view?.frame();
  }

  newSeed(): void {
    if (this.source.seed === null) this.ask({ seed: (this.state.seed + 1) % 1000 });
  }

  /** Executes what is asked for, and drops what was asked for before. */
  ask(change: Partial<PaneState>): void {
    const run = Math.min(this.runs.length - 1, change.run ?? this.state.run);
    const isSameSpace = sameSpace(this.runs[run], this.run);
    let skill = change.skill ?? (isSameSpace ? this.state.skill : defaultSkill(this.runs[run]));
    if (skill.length !== this.runs[run].space.low.length) skill = defaultSkill(this.runs[run]);
    skill = this.source.nearest(run, clampSkill(this.runs[run].space, skill));
    this.state = { run, skill, seed: this.source.seed ?? change.seed ?? this.state.seed };
    this.select.value = String(run);
    this.events.asked();
    this.execute();
  }

  stop(): void {
    this.request?.abort();
    this.request = null;
  }

  /** Shows the episode at this time; `span` is the time at the right edge of the timeline. */
  draw(seconds: number, span: number): void {
    const { episode } = this;
    // What is still is not drawn again: a paused page costs nothing.
    const shown = [seconds, span, episode?.steps, this.timelineCanvas.clientWidth, window.devicePixelRatio].join();
    if (episode?.steps && (shown !== this.shown || episode !== this.shownEpisode)) {
      this.shown = shown;
      this.shownEpisode = episode;
      const step = episode.stepAt(seconds);
      this.view?.pose(episode, seconds);
      this.timeline.draw(episode, seconds, span);
      this.drawNumbers(episode, step);
    }
    this.view?.render();
  }

  private execute(): void {
    this.stop();
    const request = new AbortController();
    this.request = request;
    const { run, skill, seed } = this.state;
    const episode = new Episode(this.run, skill, seed);
    this.setState("waiting");
    setText(this.skillText, `skill ${formatSkill(this.run.space, skill)}`);
    setText(this.seedButton, `start ${seed} ↻`);
    const late = setTimeout(() => this.say("Executing the skill…"), 400);
    const listener = {
      chunk: (chunk: Parameters<Episode["add"]>[0]) => {
        if (request.signal.aborted) return;
        clearTimeout(late);
        if (!episode.steps) this.begin(episode);
        episode.add(chunk);
        this.root.dataset.steps = String(episode.steps);
        if (chunk.end) this.setState("done");
      },
      note: (text: string) => {
        if (request.signal.aborted) return;
        clearTimeout(late);
        this.say(text);
      },
    };
    this.source
      .execute(this.key, run, skill, seed, listener, request.signal)
      .catch((error: Error) => {
        if (request.signal.aborted) return;
        this.setState("failed");
        this.say(error.message, true);
      })
      .finally(() => clearTimeout(late));
  }

  private begin(episode: Episode): void {
    this.episode = episode;
    this.say(this.view ? "" : "This browser offers no WebGL: numbers and timeline work, the animation does not.", !this.view);
    this.view?.show(episode.run);
    this.makeGauges(episode.run);
    this.timelineCanvas.style.height = `${episode.run.space.names.length * ROW_HEIGHT + AXIS_HEIGHT}px`;
    this.setState("playing");
    this.events.started();
  }

  private setState(state: "waiting" | "playing" | "done" | "failed"): void {
    this.root.dataset.state = state;
  }

  private say(text: string, isError = false): void {
    setText(this.message, text);
    this.message.classList.toggle("error", isError);
  }

  private makeNumbers(): HTMLElement {
    const box = element("div", "numbers");
    for (const [name, target] of [["return", this.numbers.total], ["time", this.numbers.time], ["distance", this.numbers.gap]] as const) {
      const item = element("span");
      item.append(`${name} `, target);
      box.append(item);
    }
    box.append(this.numbers.verdict);
    return box;
  }

  private makeGauges(run: Run): void {
    this.gaugeBox.replaceChildren();
    this.gauges = run.space.names.map((name) => {
      const gauge = { fill: element("i", "fill"), target: element("i", "target"), value: element("span", "value") };
      const track = element("span", "track");
      track.append(gauge.fill, gauge.target);
      const row = element("div", "gauge", "", { title: `${name}: mean so far, of the target marked by the line` });
      row.append(element("span", "name", shortName(name)), track, gauge.value);
      this.gaugeBox.append(row);
      return gauge;
    });
  }

  private drawNumbers(episode: Episode, step: number): void {
    const { run, skill } = episode;
    const mean = episode.meanAt(step);
    const [observed, asked] = [shownValues(run.space, mean), shownValues(run.space, skill)];
    this.gauges.forEach((gauge, dim) => {
      const [low, high] = shownRange(run.space, dim);
      const share = (value: number) => Math.min(1, Math.max(0, (value - low) / (high - low)));
      gauge.fill.style.width = `${(100 * share(observed[dim])).toFixed(2)}%`;
      gauge.target.style.left = `${(100 * share(asked[dim])).toFixed(2)}%`;
      setText(gauge.value, `${format(observed[dim], high - low)} of ${format(asked[dim], high - low)}`);
    });
    const gap = distance(mean, skill);
    setText(this.numbers.total, format(episode.returns[step], 100));
    const time = run.is_real_time ? `${format((step + 1) * run.step_seconds, 1)} s` : `${step + 1} steps`;
    setText(this.numbers.time, time);
    setText(this.numbers.gap, format(gap, run.d_eval * 10));
    const isLast = episode.end !== undefined && step === episode.steps - 1;
    setText(this.numbers.verdict, isLast ? `${gap < run.d_eval ? "achieved" : "missed"}${END_TEXTS[episode.end as string]}` : "");
    this.numbers.verdict.classList.toggle("good", gap < run.d_eval);
  }
}

const END_TEXTS: Record<string, string> = { terminated: ", fell", "time limit": "", cut: ", cut here" };

export function sameSpace(one: Run, other: Run): boolean {
  return one === other || JSON.stringify(one.space) === JSON.stringify(other.space);
}

/** The skill that is shown first: of those achieved the one with the highest return, else the middle of the space. */
export function defaultSkill(run: Run): Skill {
  const { space, evaluation } = run;
  if (evaluation) {
    let best = -1;
    evaluation.performance.forEach((value, i) => {
      const gap = evaluation.distance[i];
      const isBetter = value !== null && gap !== null && gap < run.d_eval && (best < 0 || value > (evaluation.performance[best] ?? -Infinity));
      if (isBetter) best = i;
    });
    if (best >= 0) return cellCentre(space, best);
  }
  return space.kind === "circle" ? [1, 0] : space.low.map((low, i) => (low + space.high[i]) / 2);
}

function makeView(canvas: HTMLCanvasElement): View | null {
  try {
    return new View(canvas);
  } catch {
    return null;
  }
}
