// The person's hand: what is said, and every button and form. A refusal stands beside its control and loses no text.
import { $, all, ask, make, put, refusal, say, stored } from "./dom.js";
import * as composer from "./composer.js";
import { catchUp, earlier, goTo, step, toEnd } from "./entries.js";
import { openFind } from "./find.js";
import { isTold, setBusy, tellMe } from "./head.js";

export { draft } from "./composer.js";

const text = $("#say-text");
let changedState = () => {};

// -- what goes to the daemon -------------------------------------------------------------------------------------

// Sends a command; gives what the daemon answered, or nothing when it refused. `result` is told either way.
export async function send(path, body, result, done = "") {
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
    else if ("lines" in field.dataset) body[field.name] = field.value.split("\n").map((line) => line.trim()).filter(Boolean);
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
    if (form.dataset.post !== "/step") form.reset();
    if (!form.closest("#more")) form.closest("dialog")?.close();
    form.closest(".task-acts details")?.removeAttribute("open");
    if (form.closest("#main") && !form.closest("#outcome")) toEnd();
  } finally {
    setBusy(button, false);
  }
}

// -- buttons -----------------------------------------------------------------------------------------------------

const result = () => $("#controls-result");

const ACTS = {
  pause: () => send("/pause", null, result(), "Paused: agents finish the turn they are writing."),
  resume: () => send("/resume", null, result(), "They go on."),
  start: () => send("/notify", null, result(), "Started."),
  retry: (button) => send("/retry", { agent: button.closest("[data-agent]").dataset.agent }, result(), "Asked once more."),
  skip: (button) => send("/skip", { agent: button.closest("[data-agent]").dataset.agent }, result(), "Passed over."),
  leave: (button) => send("/leave", { agent: button.closest("[data-agent]").dataset.agent }, result(), "They go on without it."),
  replace: () => replace(),
  floor: () => send("/floor", null, $("#say-result"), "You have asked for the floor."),
  pass: () => send("/pass", null, $("#say-result"), "Passed on."),
  stop: () => $("#stop-dialog").showModal(),
  help: () => $("#help").showModal(),
  close: (button) => button.closest("dialog").close(),
  more: () => toggleMore(),
  panels: () => togglePanels(),
  bottom: () => toEnd(),
  earlier: () => earlier().catch(() => {}),
  mention: () => composer.mention(),
  default: (button) => composer.fill(button.dataset.text),
  plainly: () => composer.plainly(),
  copy: (button) => copy(button),
  strike: (button) => openStrike(button.dataset.turn),
};

// The sheet with everything else; what it asks for is chosen from lists.
function toggleMore() {
  const sheet = $("#more");
  if (sheet.open) return sheet.close();
  $("#turns").replaceChildren(
    ...all("#log .entry[data-number]:not([data-number='0'])").slice(-200).reverse().map((entry) =>
      make("option", { value: entry.dataset.number, label: `${$(".name", entry)?.textContent}: ${$(".body", entry)?.textContent.trim().slice(0, 60)}` })),
  );
  return sheet.showModal();
}

// Another model is another agent, with a daemon of its own: it is invited, and the one that failed can leave.
function replace() {
  toggleMore();
  const form = $('#more [data-post="/invite"]');
  form.closest("details").open = true;
  $("[name=agent]", form).focus();
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
  f: () => openFind(),
  m: () => toggleMore(),
  "?": () => $("#help").showModal(),
};

function onKey(event) {
  if (event.isComposing || event.keyCode === 229) return; // an input method is at work, and Enter is its own
  if (event.target === text && composer.onKey(event)) return;
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
  if (form.id === "say") composer.speak();
  else if (form.id === "stop-form") stop();
  else if (form.dataset.post) submitForm(form);
}

export function begin(onChange) {
  changedState = onChange;
  document.addEventListener("click", onClick);
  document.addEventListener("submit", onSubmit);
  document.addEventListener("keydown", onKey);
  $("#keys-on").checked = stored(localStorage, "dialogd:keys") !== "off";
  $("#keys-on").addEventListener("change", (event) => stored(localStorage, "dialogd:keys", event.target.checked ? "" : "off"));
  $("#notify-on").checked = isTold();
  $("#notify-on").addEventListener("change", async (event) => {
    const why = await tellMe(event.target.checked);
    put($("#notify-said"), why);
    if (why) event.target.checked = false;
  });
  composer.begin();
}
