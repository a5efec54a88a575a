// What has arrived of a run, kept apart from what is drawn of it.

/** The settings that have an effect, in one string: equal strings mean the same distribution. */
export function effect(settings) {
  if (!settings) return "";
  const off = (value, neutral) => Number(value ?? neutral);
  const shared = [off(settings.repetition_penalty, 1), off(settings.no_repeat_ngram_size, 0)];
  if (settings.strategy === "greedy" || Number(settings.temperature) === 0) {
    return JSON.stringify(["greedy", ...shared]);
  }
  return JSON.stringify([
    "sampling",
    off(settings.temperature, 1),
    off(settings.top_k, 0),
    off(settings.top_p, 1),
    off(settings.min_p, 0),
    off(settings.typical_p, 1),
    ...shared,
  ]);
}

export class Run {
  constructor(handle) {
    this.handle = handle;
    this.started = null;
    this.settings = null;
    this.branch = null;
    this.waiting = null;
    this.finished = null;
    this.paused = false;
    this.error = null;
    this.arrived = []; // by index; may have gaps
    this.length = 0; // steps without a gap: these may be drawn
    this.total = 0; // steps that there must be, as its end tells
    this.version = 0; // counts replaced steps, so that drawings know when to start afresh
  }

  get running() {
    return !this.finished && !this.error;
  }

  /** Whether its limit was one token: then reaching it is nothing to report. */
  get single() {
    return this.started && this.started.max_new_tokens - this.started.inherited === 1;
  }

  /** Whether this run goes on where `parent` ended, so that the parent's text is part of its own. */
  continues(parent) {
    return this.branch?.parent === parent.handle && this.branch.at >= parent.length;
  }

  step(index) {
    return index < this.length ? this.arrived[index] : undefined;
  }

  /** The steps that may be drawn, oldest first. */
  get steps() {
    return this.arrived.slice(0, this.length);
  }

  /** Takes over what a branch keeps of its parent. */
  inherit(parent, count) {
    for (let i = 0; i < Math.min(count, parent.length); i += 1)
      this.arrived[i] ??= parent.arrived[i];
    this.count();
  }

  /** Merges a message; late, repeated and out-of-order ones included. */
  merge(message) {
    if (message.started) this.started = message.started;
    if (message.settings) this.settings = message.settings;
    if (message.branch) this.branch = message.branch;
    if (message.finished) {
      this.finished = message.finished;
      this.total = Math.max(this.total, (message.from ?? 0) + (message.steps?.length ?? 0));
    }
    if (message.paused != null) this.paused = message.paused;
    if (message.error) this.error = message.error;
    else if (message.steps?.length || message.finished) this.error = null; // it goes on after all
    this.add(message.steps ?? []);
    if (message.waiting != null) this.waiting = message.waiting;
    if (this.length || this.finished || this.error) this.waiting = null;
  }

  add(steps) {
    for (const step of steps) {
      const before = this.arrived[step.index];
      if (before && before.id !== step.id && step.index < this.length) this.version += 1;
      this.arrived[step.index] = step;
    }
    this.count();
  }

  count() {
    while (this.arrived[this.length]) this.length += 1;
  }

  /** Index from which steps are missing although later ones, or the end, are here; or null. */
  gap() {
    return Math.max(this.arrived.length, this.total) > this.length ? this.length : null;
  }

  /** The written text, from the steps themselves. */
  get text() {
    return this.steps.map((step) => step.text).join("");
  }
}
