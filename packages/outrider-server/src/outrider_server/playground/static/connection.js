// The server: there, loading its model, away, and back.

import { health, load, models } from "/playground/api.js";
import { $ } from "/playground/dom.js";
import { keepSettings, offer, settings } from "/playground/settings.js";
import { setSources } from "/playground/tokens.js";

const LOOK_EVERY = 15000; // ms

export class Connection {
  // `onReady()` is called whenever the server can answer again; `isBusy()`: an answer tells how the server is.
  constructor({ onReady, isBusy }) {
    Object.assign(this, { onReady, isBusy, models: [], model: null, online: false });
    $("model-choice").addEventListener("change", () => {
      settings.model = $("model-choice").value;
      keepSettings();
      this.use(this.models.find(({ id }) => id === settings.model));
      this.load();
    });
    setInterval(() => this.look(), LOOK_EVERY);
  }

  async connect(wait = 1000) {
    try {
      this.models = await models();
    } catch (error) {
      say(error.kind === "away" ? "server away, reconnecting" : error.message, true);
      setTimeout(() => this.connect(Math.min(2 * wait, 8000)), wait);
      return;
    }
    if (!this.models[0].speculation && !this.models[0].status) {
      say("loading the model");
      setTimeout(() => this.connect(), 1000);
      return;
    }
    this.use(this.models.find((each) => each.id === (this.model?.id ?? settings.model)) ?? this.models[0]);
    this.online = true;
    say("ready");
    this.onReady();
  }

  // A model that was picked is loaded at once, so that what it offers is known before it is asked.
  async load() {
    const { id } = this.model;
    if (!this.model.status || this.model.status.value === "loaded" || this.isBusy()) return;
    try {
      await this.prepared(AbortSignal.timeout(600000));
      if (this.model.id === id && !this.isBusy()) say("ready");
    } catch (error) {
      if (this.model.id === id) say(error.message, true);
    }
  }

  // The chosen model with what it offers. One that is not loaded (anymore) is loaded first, where models come and go.
  async prepared(signal) {
    if (!this.model.status) return this.model;
    this.models = await models();
    if (this.chosen().status.value !== "loaded") {
      say(`loading ${this.model.id}`);
      await load(this.model.id, signal);
      this.models = await models();
      if (this.isBusy()) say("writing");
    }
    this.use(this.chosen());
    return this.model;
  }

  chosen() {
    return this.models.find(({ id }) => id === this.model.id) ?? this.models[0];
  }

  lost() {
    if (!this.online) return;
    this.online = false;
    this.connect();
  }

  async look() {
    if (document.hidden || this.isBusy() || !this.online) return;
    if (await health() !== "ok") this.lost();
  }

  use(model) {
    this.model = model;
    if (model.speculation) setSources(model.speculation.sources);
    offer(model);
    this.showSmall();
    const several = this.models.length > 1;
    $("model").textContent = model.id;
    $("model").hidden = several;
    $("model-choice").hidden = !several;
    $("model-choice").replaceChildren(...this.models.map((each) => new Option(label(each), each.id, false, each.id === model.id)));
  }

  // What a small model is worth, until it has answered once.
  showSmall() {
    const { model } = this;
    $("small").hidden = !isSmall(model) || saidSmall().includes(model.id);
    if ($("small").hidden) return;
    const better = model.larger_model ? ` This machine has room for ${model.larger_model}.` : "";
    $("small").textContent = `${model.id} has ${size(model)} parameters: its answers are often wrong.${better}`;
  }

  saidSmall() {
    if (!isSmall(this.model) || saidSmall().includes(this.model.id)) return;
    settings.saidSmall = [...saidSmall(), this.model.id].join("\n");
    keepSettings();
    this.showSmall();
  }
}

const saidSmall = () => (typeof settings.saidSmall === "string" ? settings.saidSmall.split("\n") : []);
const isSmall = ({ num_parameters: count }) => count > 0 && count < 1e9;
const size = ({ num_parameters: count }) => (count < 1e6 ? "less than a million" : `${Math.ceil(count / 1e6)} million`);

const label = ({ id, status }) => (!status || status.value === "loaded" ? id : `${id} (${status.value})`);

export function say(text, bad = false) {
  if ($("state").textContent !== text) $("state").textContent = text;
  $("state").classList.toggle("bad", bad);
}
