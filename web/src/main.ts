/** The page: the skill space on the left, one or two panes on the right, playback below. */

import { paneText, readAddress, SPEEDS, type PaneState, type State, writeAddress } from "./address";
import { Clock } from "./clock";
import { byId, element, setText } from "./dom";
import { Pane, sameSpace } from "./pane";
import { commonLimits, SkillMap } from "./skillmap";
import { findSource, type Source } from "./source";
import { cellStep, format, fromShown, shownRange, shownValues } from "./space";
import type { MapMode, Run, Skill } from "./types";

/** While a skill is dragged, the robot is asked for it at most this often, in milliseconds. */
const DRAG_INTERVAL = 120;

class Explorer {
  private readonly clock = new Clock();
  private readonly panes: Pane[] = [];
  private active!: Pane;
  private mode: MapMode = "distance";
  private follow = true;
  private lastAsked = 0;
  private lastFrame = performance.now();
  private pendingTime: number | null = null;
  private mapRun: Run | null = null;
  private sliders: { input: HTMLInputElement; output: HTMLElement }[] = [];
  private readonly map: SkillMap;

  constructor(private readonly source: Source, private readonly runs: Run[]) {
    this.map = new SkillMap(byId("map"), (skill, isFinal) => this.pick(skill, isFinal));
    this.bindControls();
    this.apply(readAddress(location.hash));
    window.addEventListener("hashchange", () => this.apply(readAddress(location.hash)));
    window.addEventListener("keydown", (event) => this.press(event));
    requestAnimationFrame((now) => this.tick(now));
  }

  private apply(state: State): void {
    this.mode = state.map;
    this.clock.speed = state.speed;
    this.clock.isLooping = state.loop;
    this.follow = state.follow;
    this.pendingTime = state.time;
    this.open(0, state.a);
    if (state.b) this.open(1, state.b);
    else if (this.panes.length > 1) this.closeSecond();
    this.activate(this.active ?? this.panes[0]);
  }

  /** Shows a state in the first or second pane, which is made where it is not there yet. */
  private open(index: number, state: PaneState | null): void {
    let pane = this.panes[index];
    if (!pane) {
      pane = new Pane(index ? "b" : "a", this.runs, this.source, {
        asked: () => this.changed(),
        started: () => this.restart(),
        activated: (turned) => this.activate(turned),
        seek: (seconds) => this.seek(seconds),
      });
      this.panes[index] = pane;
      byId("panes").append(pane.root);
    }
    pane.follow = this.follow;
    const isShown = state !== null && pane.episode !== null && paneText(state) === paneText(pane.state);
    if (!isShown) pane.ask(state ?? {});
    document.body.classList.toggle("comparing", this.panes.length > 1);
  }

  /** Keeps up with what a pane asks for: at once, lest a click is read on the map of another run. */
  private changed(): void {
    this.save();
    if (this.active) this.drawSpace();
  }

  private closeSecond(): void {
    const [pane] = this.panes.splice(1);
    pane.stop();
    pane.root.remove();
    document.body.classList.remove("comparing");
    this.activate(this.panes[0]);
  }

  private toggleComparison(): void {
    if (this.panes.length > 1) {
      this.closeSecond();
    } else {
      const first = this.panes[0].state;
      const other = this.runs.findIndex((run, i) => i !== first.run && run.task === this.panes[0].run.task);
      this.open(1, other < 0 ? { ...first } : { ...first, run: other });
      this.activate(this.panes[1]);
    }
    this.save();
  }

  private activate(pane: Pane): void {
    this.active = pane;
    for (const each of this.panes) each.root.classList.toggle("active", each === pane);
    this.save();
  }

  private restart(): void {
    this.clock.restart();
    // A link to a moment is shown at that moment; what is asked for afterwards plays from its start.
    if (this.pendingTime === null) return;
    this.clock.seek(this.pendingTime);
    this.clock.isPlaying = false;
    if (this.panes.every((pane) => pane.episode)) this.pendingTime = null;
  }

  private pick(skill: Skill, isFinal: boolean): void {
    const now = performance.now();
    const isSame = this.source.nearest(this.active.state.run, skill).every((value, i) => value === this.active.state.skill[i]);
    if (isSame || (!isFinal && now - this.lastAsked < DRAG_INTERVAL)) return;
    this.lastAsked = now;
    this.active.ask({ skill });
  }

  /** Moves the skill by a cell along a dimension; a static copy goes on to the next one that it has. */
  private nudge(dim: number, sign: number): void {
    const { space } = this.active.run;
    const values = shownValues(space, this.active.state.skill);
    if (dim >= values.length) return;
    const before = this.active.state.skill.join();
    for (let i = 1; i <= space.grid_shape[dim]; i++) {
      const moved = values.map((value, j) => (j === dim ? value + sign * i * cellStep(space, dim) : value));
      const skill = this.source.nearest(this.active.state.run, fromShown(space, moved));
      if (skill.join() === before) continue;
      this.pick(skill, true);
      return;
    }
  }

  private state(): State {
    return {
      a: this.panes[0]?.state ?? null, b: this.panes[1]?.state ?? null, map: this.mode, speed: this.clock.speed,
      loop: this.clock.isLooping, follow: this.follow, time: null,
    };
  }

  /** Puts the state into the address, without another entry in the history. */
  private save(): void {
    if (!this.panes.length) return;
    const address = writeAddress(this.state());
    if (address !== location.hash) history.replaceState(null, "", address);
  }

  private async share(): Promise<void> {
    const time = this.clock.isPlaying ? null : this.clock.seconds;
    const link = location.href.replace(/#.*$/, "") + writeAddress({ ...this.state(), time });
    history.replaceState(null, "", link);
    try {
      await navigator.clipboard.writeText(link);
      this.announce("The link to this view is copied.");
    } catch {
      this.announce("The link to this view is in the address bar.");
    }
  }

  private announce(text: string): void {
    const toast = byId("toast");
    toast.textContent = text;
    toast.classList.add("shown");
    setTimeout(() => toast.classList.remove("shown"), 2500);
  }

  private get duration(): number {
    return Math.max(0, ...this.panes.map((pane) => pane.episode?.seconds ?? 0));
  }

  private seek(seconds: number): void {
    this.clock.isPlaying = false;
    this.clock.seek(Math.min(this.duration, seconds));
  }

  private step(sign: number): void {
    this.seek(this.clock.seconds + sign * this.active.run.step_seconds * this.active.run.stride);
  }

  private setSpeed(speed: number): void {
    this.clock.speed = speed;
    this.save();
  }

  private bindControls(): void {
    byId("play").addEventListener("click", () => this.clock.toggle(this.duration));
    byId("back").addEventListener("click", () => this.step(-1));
    byId("forward").addEventListener("click", () => this.step(1));
    byId<HTMLInputElement>("scrub").addEventListener("input", (event) => {
      this.seek((Number((event.target as HTMLInputElement).value) / 1000) * this.duration);
    });
    const speeds = byId<HTMLSelectElement>("speed");
    speeds.append(...SPEEDS.map((speed) => element("option", "", `${speed}×`, { value: String(speed) })));
    speeds.addEventListener("change", () => this.setSpeed(Number(speeds.value)));
    byId("loop").addEventListener("click", () => this.toggleLoop());
    byId("follow").addEventListener("click", () => this.toggleFollow());
    byId("compare").addEventListener("click", () => this.toggleComparison());
    byId("share").addEventListener("click", () => void this.share());
    byId("help").addEventListener("click", () => byId<HTMLDialogElement>("keys").showModal());
    for (const mode of ["distance", "performance"] as const) {
      byId(mode).addEventListener("click", () => this.setMode(mode));
    }
  }

  private setMode(mode: MapMode): void {
    this.mode = mode;
    this.save();
  }

  private toggleLoop(): void {
    this.clock.isLooping = !this.clock.isLooping;
    this.save();
  }

  private toggleFollow(): void {
    this.follow = !this.follow;
    for (const pane of this.panes) pane.follow = this.follow;
    if (this.follow) for (const pane of this.panes) pane.frame();
    this.save();
  }

  private press(event: KeyboardEvent): void {
    const target = event.target as HTMLElement;
    if (event.ctrlKey || event.metaKey || event.altKey || byId<HTMLDialogElement>("keys").open) return;
    const isArrow = event.key.startsWith("Arrow");
    if (isArrow && target.matches("input, select")) return;
    if (target.matches("select") || (event.key === " " && target.matches("button"))) return;
    const speed = SPEEDS.indexOf(this.clock.speed);
    const more = event.shiftKey ? 2 : 0;
    const actions: Record<string, () => void> = {
      " ": () => this.clock.toggle(this.duration),
      ArrowLeft: () => this.nudge(more, -1),
      ArrowRight: () => this.nudge(more, 1),
      ArrowDown: () => this.nudge(1 + more, -1),
      ArrowUp: () => this.nudge(1 + more, 1),
      ",": () => this.step(-1),
      ".": () => this.step(1),
      Home: () => this.seek(0),
      End: () => this.seek(this.duration),
      "+": () => this.setSpeed(SPEEDS[Math.min(SPEEDS.length - 1, speed + 1)]),
      "-": () => this.setSpeed(SPEEDS[Math.max(0, speed - 1)]),
      a: () => this.activate(this.panes[0]),
      b: () => this.panes.length > 1 && this.activate(this.panes[1]),
      c: () => this.toggleComparison(),
      m: () => this.setMode(this.mode === "distance" ? "performance" : "distance"),
      r: () => this.active.newSeed(),
      f: () => this.toggleFollow(),
      l: () => this.toggleLoop(),
      s: () => void this.share(),
      "?": () => byId<HTMLDialogElement>("keys").showModal(),
    };
    const action = actions[event.key.length === 1 ? event.key.toLowerCase() : event.key] ?? (event.key === "=" ? actions["+"] : undefined);
    if (!action) return;
    event.preventDefault();
    action();
  }

  private tick(now: number): void {
    const elapsed = Math.min(0.25, (now - this.lastFrame) / 1000);
    this.lastFrame = now;
    const duration = this.duration;
    this.clock.advance(elapsed, duration, this.panes.every((pane) => pane.isComplete));
    // Until an episode ended, the timeline shows all the time it may take.
    const ends = this.panes.map(({ episode }) =>
      !episode ? 0 : episode.end ? episode.seconds : episode.run.num_steps * episode.run.step_seconds,
    );
    const span = Math.max(...ends) || 1;
    for (const pane of this.panes) pane.draw(this.clock.seconds, span);
    this.drawSpace();
    this.drawTransport(duration);
    requestAnimationFrame((next) => this.tick(next));
  }

  private drawSpace(): void {
    const { run } = this.active;
    if (run !== this.mapRun) this.changeMap(run);
    const markers = this.panes.filter((pane) => sameSpace(pane.run, run)).map((pane) => {
      const { episode } = pane;
      const isCurrent = episode !== null && episode.steps > 0 && episode.skill === pane.state.skill;
      return {
        pane: pane.key, skill: pane.state.skill, isActive: pane === this.active,
        observed: isCurrent ? episode.meanAt(episode.stepAt(this.clock.seconds)) : null,
      };
    });
    const limits = commonLimitsOf(this.runs, run, this.mode);
    this.map.draw({ run, mode: this.mode, limits, markers, recorded: this.source.recorded(this.active.state.run) });
    shownValues(run.space, this.active.state.skill).forEach((value, dim) => {
      const [low, high] = shownRange(run.space, dim);
      const { input, output } = this.sliders[dim];
      if (document.activeElement !== input || this.source.seed !== null) input.value = String(value);
      setText(output, format(value, high - low));
    });
    for (const mode of ["distance", "performance"]) byId(mode).setAttribute("aria-pressed", String(mode === this.mode));
    document.body.dataset.active = this.active.key;
  }

  /** Writes what belongs to the run of the active pane: texts and sliders. */
  private changeMap(run: Run): void {
    this.mapRun = run;
    const { evaluation, space } = run;
    setText(byId("task"), run.task);
    setText(byId("summary"), run.summary);
    setText(byId("whose"), this.runs.length > 1 ? run.label : "");
    setText(byId("scores"), evaluation
      ? `${evaluation.distance.length} skills evaluated, ${evaluation.rollouts} rollout${evaluation.rollouts === 1 ? "" : "s"} each: ${format(100 * evaluation.achieved, 30)} % achieved (distance below ${run.d_eval})`
      : "Not evaluated yet: qdac evaluate RUN colours the map.");
    setText(byId("note"), run.note);
    byId("modes").hidden = !evaluation;
    document.body.classList.toggle("strip", space.kind === "box" && space.names.length === 1);
    const box = byId("sliders");
    box.replaceChildren();
    this.sliders = space.names.map((name, dim) => {
      const [low, high] = shownRange(space, dim);
      const input = element("input", "", "", {
        type: "range", min: String(low), max: String(high), step: String((high - low) / 1000), "aria-label": name,
      });
      const output = element("output");
      const label = element("label", "slider");
      label.append(element("span", "name", name), output, input);
      const send = (isFinal: boolean) => this.pick(fromShown(space, this.sliders.map((slider) => Number(slider.input.value))), isFinal);
      input.addEventListener("input", () => send(false));
      input.addEventListener("change", () => send(true));
      box.append(label);
      return { input, output };
    });
    shownValues(space, this.active.state.skill).forEach((value, dim) => (this.sliders[dim].input.value = String(value)));
  }

  private drawTransport(duration: number): void {
    const play = byId("play");
    setText(play, this.clock.isPlaying ? "❚❚" : "▶");
    play.setAttribute("aria-label", this.clock.isPlaying ? "Pause" : "Play");
    const scrub = byId<HTMLInputElement>("scrub");
    scrub.value = String(duration ? (1000 * this.clock.seconds) / duration : 0);
    const { is_real_time: isRealTime, step_seconds: step } = this.active.run;
    const text = (seconds: number) => (isRealTime ? `${seconds.toFixed(2)} s` : `${Math.round(seconds / step)}`);
    setText(byId("time"), `${text(this.clock.seconds)} / ${text(duration)}${isRealTime ? "" : " steps"}`);
    byId<HTMLSelectElement>("speed").value = String(this.clock.speed);
    byId("loop").setAttribute("aria-pressed", String(this.clock.isLooping));
    byId("follow").setAttribute("aria-pressed", String(this.follow));
    byId("compare").setAttribute("aria-pressed", String(this.panes.length > 1));
  }
}

const limitsCache = new Map<string, [number, number] | null>();

/** The colour scale that all runs of the same task share. */
function commonLimitsOf(runs: Run[], run: Run, mode: MapMode): [number, number] | null {
  const key = `${runs.indexOf(run)} ${mode}`;
  const known = limitsCache.get(key);
  if (known !== undefined) return known;
  const limits = commonLimits(runs.filter((other) => other.task === run.task && sameSpace(other, run)), mode);
  limitsCache.set(key, limits);
  return limits;
}

const source = findSource();
source.runs().then(
  (runs) => {
    new Explorer(source, runs);
    document.body.dataset.ready = "1";
  },
  (error: Error) => setText(byId("summary"), error.message),
);
