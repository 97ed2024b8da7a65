// The person's hand: what is said, and every button and form. A refusal stands beside its control and loses no text.
import { $, all, ask, put, refusal, say, show, stored } from "./dom.js";
import { catchUp, earlier, goTo, step, toEnd } from "./entries.js";
import { now, setBusy } from "./head.js";

const text = $("#say-text");
const key = (name) => `dialogd:${name}:${now()?.dialog || document.body.dataset.dialog}`;
let changedState = () => {};

// -- what goes to the daemon -------------------------------------------------------------------------------------

// Sends a command; gives what the daemon answered, or nothing when it refused. `result` is told either way.
async function send(path, body, result, done = "") {
  result.classList.remove("refused");
  put(result, "");
  let answer;
  try {
    answer = await ask(path, { body, seconds: path === "/stop" ? 15 : 10 });
  } catch {
    answer = { ok: false, facts: { detail: "The daemon does not answer", fix: "wait until this page has found one, then send it again" } };
  }
  result.classList.toggle("refused", !answer.ok);
  put(result, answer.ok ? done : refusal(answer.facts));
  if (answer.ok && done) setTimeout(() => result.textContent === done && put(result, ""), 6000);
  if (answer.ok) {
    catchUp().catch(() => {});
    changedState();
  }
  return answer.ok ? answer.facts : null;
}

function fieldsOf(form) {
  const body = {};
  for (const field of form.elements) {
    if (!field.name || field.disabled) continue;
    if (field.type === "checkbox") body[field.name] = field.checked;
    else if (field.type === "number" || field.id === "strike-turn") body[field.name] = Number(field.value);
    else if ("bool" in field.dataset) body[field.name] = field.value === "true";
    else body[field.name] = field.value.trim();
  }
  return Object.keys(body).length ? body : null;
}

async function submitForm(form) {
  const button = $("button[type=submit]", form);
  if (button.disabled) return;
  setBusy(button, true);
  try {
    const done = await send(form.dataset.post, fieldsOf(form), $(".result", form), form.dataset.ok || "Done.");
    if (!done) return;
    if (form.id !== "step-form") form.reset();
    for (const field of all("[data-keep-text]", form)) stored(sessionStorage, key(field.id), "");
    form.closest("dialog")?.close();
    if (form.closest("#main") && !form.closest("#outcome")) toEnd();
  } finally {
    setBusy(button, false);
  }
}

// -- saying something --------------------------------------------------------------------------------------------

// Whom `@B` or `@Claude B` at the beginning means: the agent, or nobody; longer names go first.
function addressed(words) {
  if (!words.startsWith("@")) return null;
  const rest = words.slice(1).toLowerCase();
  const names = (now()?.agents ?? []).flatMap((agent) => [agent.id, agent.name].map((name) => ({ name: name.toLowerCase(), agent })));
  names.sort((one, other) => other.name.length - one.name.length);
  return names.find(({ name }) => rest.startsWith(name) && !/[\p{L}\p{N}_-]/u.test(rest[name.length] ?? " "))?.agent ?? null;
}

// A name after the `@` that nobody has: the daemon refuses it and says who there is.
const stranger = (words) => words.match(/^@([\p{L}\p{N}_-]+)/u)?.[1].slice(0, 200) ?? "";

function hint() {
  const words = text.value.trimStart();
  const to = addressed(words);
  for (const button of all("#mentions button")) button.setAttribute("aria-pressed", String(button.dataset.agent === to?.id));
  const isNote = $("#say-note").checked;
  let about = "";
  if (isNote) about = "A note: it stands in the dialog, interrupts nobody and passes no turn.";
  else if (to) about = `The turn goes to ${to.name}.`;
  else if (stranger(words)) about = `No agent is called ${stranger(words).slice(0, 40)}. Put another word first if you mean no name.`;
  put($("#say-hint"), about);
}

async function speak() {
  const words = text.value;
  const button = $("#say-send");
  if (button.disabled) return;
  if (!words.trim()) {
    put($("#say-result"), "There is nothing to say yet.");
    text.focus();
    return;
  }
  const note = $("#say-note").checked;
  setBusy(button, true);
  try {
    const to = note ? "" : (addressed(words.trimStart())?.id ?? stranger(words.trimStart()));
    const done = await send("/say", { text: words, to, note }, $("#say-result"));
    // What was typed while it was sent stays.
    if (done && text.value === words) text.value = "";
    if (done) {
      keep();
      hint();
      toEnd();
    }
  } finally {
    setBusy(button, false);
  }
}

function mention(who) {
  const start = addressed(text.value.trimStart());
  const without = start ? text.value.trimStart().replace(/^@/, "").slice(lengthOf(start)).trimStart() : text.value;
  text.value = start?.id === who ? without : `@${who} ${without}`;
  text.focus();
  keep();
  hint();
}

function lengthOf(agent) {
  const rest = text.value.trimStart().slice(1).toLowerCase();
  const isNamed = rest.startsWith(agent.name.toLowerCase());
  return isNamed && agent.name.length > agent.id.length ? agent.name.length : agent.id.length;
}

function keep() {
  stored(sessionStorage, key("say"), text.value);
}

export const unsent = () => text.value;

export function fillIn(words) {
  if (text.value || !words) return;
  text.value = words;
  keep();
  hint();
}

// What an act beside a turn or a proposal wants to be said: to whom, if to somebody, with these words behind what was
// typed already. The reader goes on typing.
export function draft(words, { to = "" } = {}) {
  const typed = text.value.trimEnd();
  text.value = typed && words ? `${typed}\n\n${words}` : typed || words;
  if (to && addressed(text.value.trimStart())?.id !== to) mention(to);
  text.focus();
  text.setSelectionRange(text.value.length, text.value.length);
  keep();
  hint();
}

// -- buttons -----------------------------------------------------------------------------------------------------

const result = () => $("#controls-result");

const ACTS = {
  pause: () => send("/pause", null, result(), "Paused: agents finish the turn they are writing."),
  resume: () => send("/resume", null, result(), "They go on."),
  retry: (button) => send("/retry", { agent: button.closest("[data-agent]").dataset.agent }, result(), "Asked once more."),
  skip: (button) => send("/skip", { agent: button.closest("[data-agent]").dataset.agent }, result(), "Passed over."),
  floor: () => send("/floor", null, $("#say-result"), "You have asked for the floor."),
  pass: () => send("/pass", null, $("#say-result"), "Passed on."),
  stop: () => $("#stop-dialog").showModal(),
  help: () => $("#help").showModal(),
  close: (button) => button.closest("dialog").close(),
  more: () => toggleMore(),
  panels: () => togglePanels(),
  bottom: () => toEnd(),
  earlier: () => earlier().catch(() => {}),
  mention: (button) => mention(button.dataset.agent),
  copy: (button) => copy(button),
  strike: (button) => openStrike(button.dataset.turn),
};

function toggleMore(yes = $("#more").hidden) {
  show($("#more"), yes);
  $("#more-open").setAttribute("aria-expanded", String(yes));
  if (yes) $("#more textarea, #more input:not([type=hidden])").focus({ preventScroll: true });
}

// On a narrow screen the panels lie above the conversation, when they are wanted.
function togglePanels(yes = !document.body.classList.contains("with-panels")) {
  document.body.classList.toggle("with-panels", yes);
  $("#panels-open").setAttribute("aria-expanded", String(yes));
}

function openStrike(turn) {
  $("#strike-form").reset();
  put($("#strike-number"), turn);
  $("#strike-turn").value = turn;
  put($("#strike-form .result"), "");
  $("#strike-dialog").showModal();
}

async function copy(button) {
  const code = $("pre", button.parentElement).textContent;
  try {
    await navigator.clipboard.writeText(code);
    put(button, "Copied");
    say("Copied.");
  } catch {
    getSelection().selectAllChildren($("pre", button.parentElement));
    put(button, "Selected");
    say("The browser does not let the page copy; the code is selected.");
  }
  setTimeout(() => put(button, "Copy"), 2000);
}

async function stop() {
  const done = await send("/stop", { reason: $("#stop-reason").value.trim() }, $("#stop-form .result"));
  if (done) $("#stop-dialog").close();
}

// -- keys --------------------------------------------------------------------------------------------------------

const KEYS = {
  s: () => text.focus(),
  "/": () => text.focus(),
  p: () => !$("#pause").hidden && $("#pause").click(),
  j: () => step(1),
  k: () => step(-1),
  e: () => toEnd(),
  m: () => toggleMore(),
  "?": () => $("#help").showModal(),
};

function onKey(event) {
  if (event.isComposing) return;
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    const form = event.target.closest?.("form");
    if (form && event.target.matches("textarea, input")) {
      event.preventDefault();
      form.requestSubmit();
    }
    return;
  }
  if (event.key === "Escape" && !$("dialog[open]")) {
    if (event.target.matches?.("input, textarea, select")) event.target.blur();
    else if (document.body.classList.contains("with-panels")) {
      togglePanels(false);
      $("#panels-open").focus();
    } else if (!$("#more").hidden) {
      toggleMore(false);
      $("#more-open").focus();
    }
    return;
  }
  const isTyping = event.target.matches?.("input, textarea, select, [contenteditable]");
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey || $("dialog[open]") || !$("#keys-on").checked) return;
  const act = KEYS[event.key];
  if (!act) return;
  event.preventDefault();
  act();
}

// -- wiring ------------------------------------------------------------------------------------------------------

function onClick(event) {
  const button = event.target.closest("[data-do]");
  if (button && ACTS[button.dataset.do]) {
    ACTS[button.dataset.do](button);
    return;
  }
  const link = event.target.closest('a[href^="#"], a');
  const anchor = link?.getAttribute("href")?.match(/^#([tn][0-9.]+)$/)?.[1] ?? link?.getAttribute("xlink:href")?.match(/^#([tn][0-9.]+)$/)?.[1];
  if (!anchor || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  togglePanels(false);
  history.replaceState(null, "", `#${anchor}`);
  goTo(anchor).catch(() => {});
}

function onSubmit(event) {
  const form = event.target;
  if (form.id === "say" || form.id === "stop-form" || form.dataset.post) event.preventDefault();
  if (form.id === "say") speak();
  else if (form.id === "stop-form") stop();
  else if (form.dataset.post) submitForm(form);
}

export function begin(onChange) {
  changedState = onChange;
  document.addEventListener("click", onClick);
  document.addEventListener("submit", onSubmit);
  document.addEventListener("keydown", onKey);
  document.addEventListener("input", (event) => {
    if (event.target === text) keep();
    if (event.target === text || event.target.id === "say-note") hint();
    if (event.target.matches("[data-keep-text]")) stored(sessionStorage, key(event.target.id), event.target.value);
  });
  $("#keys-on").checked = stored(localStorage, "dialogd:keys") !== "off";
  $("#keys-on").addEventListener("change", (event) => stored(localStorage, "dialogd:keys", event.target.checked ? "" : "off"));
  text.value ||= stored(sessionStorage, key("say"));
  for (const field of all("[data-keep-text]")) field.value ||= stored(sessionStorage, key(field.id));
  hint();
}
