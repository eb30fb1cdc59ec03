/** The time that is shown, shared by both panes. */

const PAUSE_AT_END = 0.7;

export class Clock {
  seconds = 0;
  speed = 1;
  isPlaying = true;
  isLooping = true;
  private pause = 0;

  restart(): void {
    this.seconds = 0;
    this.pause = 0;
    this.isPlaying = true;
  }

  seek(seconds: number): void {
    this.seconds = Math.max(0, seconds);
    this.pause = 0;
  }

  toggle(duration: number): void {
    if (!this.isPlaying && this.seconds >= duration) this.seek(0);
    this.isPlaying = !this.isPlaying;
  }

  /** Goes on by `elapsed` seconds of the wall; waits at `duration` for more while an episode is incomplete. */
  advance(elapsed: number, duration: number, isComplete: boolean): void {
    if (!this.isPlaying) return;
    this.seconds = Math.min(duration, this.seconds + elapsed * this.speed);
    if (this.seconds < duration || !isComplete || !duration) return;
    this.pause += elapsed;
    if (this.pause < PAUSE_AT_END) return;
    this.pause = 0;
    if (this.isLooping) this.seconds = 0;
    else this.isPlaying = false;
  }
}
