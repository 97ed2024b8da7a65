// The composer: what the person says or answers, whom it interrupts and who replies, names after `@`, drafts that survive.
import { $, make, put, say, show, stored, visible } from "./dom.js";
import { send } from "./controls.js";
import { toEnd } from "./entries.js";
import { cast, now, setBusy } from "./head.js";

const text = $("#say-text");
const note = $("#say-note");
const names = $("#names");
const key = (name) => `dialogd:${name}:${now()?.dialog || document.body.dataset.dialog}`;
let instead = ""; // the proposal in whose place the words are meant

// -- drafts ------------------------------------------------------------------------------------------------------

// What an act beside a turn or a proposal wants to be said: these words behind what was typed already, `to` an agent, if
// to one, `instead` of a proposal, if of one. The reader goes on typing.
export function draft(words, { to = "", instead: ref = "" } = {}) {
  const typed = text.value.trimEnd();
  text.value = typed && words ? `${typed}\n\n${words}` : typed || words;
  if (to) pass(to);
  if (ref) {
    instead = ref;
    note.checked = false;
  }
  settle();
  text.focus();
  text.setSelectionRange(text.value.length, text.value.length);
}

// An answer that was offered: it is sent by whoever reads it, and not by a slip.
export function fill(words) {
  text.value = words;
  settle();
  text.focus();
}

export const unsent = () => (instead && text.value ? `Instead of ${instead}: ${text.value}` : text.value);

export function fillIn(words) {
  if (text.value || !words) return;
  text.value = words;
  settle();
}

export function plainly() {
  instead = "";
  settle();
  text.focus();
}

// After every change of what is said: it is kept, and the bar says what will come of it.
function settle() {
  stored(sessionStorage, key("say"), text.value);
  stored(sessionStorage, key("instead"), instead);
  explain();
  complete();
}

// -- whom it goes to ---------------------------------------------------------------------------------------------

// Whom `@B` or `@Claude B` at the beginning means: the agent, or nobody; longer names go first.
function addressed(words) {
  if (!words.startsWith("@")) return null;
  const rest = words.slice(1).toLowerCase();
  const known = cast().flatMap((agent) => [agent.id, agent.name].map((name) => ({ name: name.toLowerCase(), agent })));
  known.sort((one, other) => other.name.length - one.name.length);
  return known.find(({ name }) => rest.startsWith(name) && !/[\p{L}\p{N}_-]/u.test(rest[name.length] ?? " ")) ?? null;
}

// A name after the `@` that nobody has: the daemon refuses it and says who there is.
const stranger = (words) => words.match(/^@([\p{L}\p{N}_-]+)/u)?.[1].slice(0, 200) ?? "";

// Puts the agent's name before the words, in the place of another one.
function pass(to) {
  const words = text.value.trimStart();
  const before = addressed(words);
  if (before?.agent.id === to) return;
  const name = cast().find((agent) => agent.id === to)?.name ?? to;
  text.value = `@${name} ${before ? words.slice(before.name.length + 1).trimStart() : words}`;
}

// -- what will come of it ----------------------------------------------------------------------------------------

const listed = (all) => (all.length > 2 ? `${all.length} agents` : all.join(" and "));

function explain() {
  const facts = now();
  const words = text.value.trimStart();
  const to = addressed(words)?.agent;
  const asks = [...new Set((facts?.questions ?? []).map((one) => one.name))].filter(Boolean); // what nobody asks is decided elsewhere
  const busy = (facts?.agents ?? []).filter((agent) => ["thinking", "executing"].includes(agent.state)).map((agent) => agent.name);
  const isAnswer = asks.length > 0 && !note.checked && !instead;
  const verb = note.checked ? "Add the note" : instead ? "Suggest" : isAnswer ? "Answer" : "Send";
  const effect = note.checked ? "" : facts?.outcome ? " · opens it again" : busy.length ? ` · interrupts ${listed(busy)}` : "";
  put($("#say-send"), `${verb}${effect}`);
  $("#say-send").classList.toggle("primary", !facts?.outcome || Boolean(words)); // after the end the card has the first word
  put($("#say-label"), isAnswer ? `Your answer to ${listed(asks)}` : "Your message");
  text.placeholder = visible(isAnswer ? "Your answer" : instead ? `What instead of ${instead}?` : facts?.outcome ? "Say something: it opens the dialog again" : "Say something, or @ and a name");
  show($("#draft-about"), Boolean(instead));
  put($("#draft-about span"), instead ? `In the place of ${instead}` : "");
  let about = "";
  if (note.checked) about = "It stands in the dialog, interrupts nobody and passes no turn.";
  else if (to) about = `${to.name} replies next.`;
  else if (stranger(words)) about = `No agent is called ${stranger(words).slice(0, 40)}. Put another word first if you mean no name.`;
  put($("#say-hint"), about);
}

// -- names after `@` ---------------------------------------------------------------------------------------------

let found = []; // who fits what is being typed
let at = 0; // which of them is chosen
let left = -1; // the place of an `@` whose list was closed

// The `@` before the caret and what was typed behind it.
function typed() {
  if (document.activeElement !== text || text.selectionStart !== text.selectionEnd) return null;
  const before = text.value.slice(0, text.selectionStart);
  const match = before.match(/(?:^|\s)@([\p{L}\p{N}_-]*(?: [\p{L}\p{N}_-]*)?)$/u);
  return match ? { from: before.length - match[1].length - 1, words: match[1].toLowerCase() } : null;
}

function complete() {
  const place = typed();
  if (!place) left = -1;
  const fits = (name) => name.toLowerCase().startsWith(place.words) || name.toLowerCase().split(" ").some((word) => word.startsWith(place.words));
  const fresh = place && place.from !== left ? cast().filter((agent) => fits(agent.id) || fits(agent.name)) : [];
  const isSame = fresh.map((agent) => agent.id).join(" ") === found.map((agent) => agent.id).join(" ");
  if (!isSame) at = 0;
  found = fresh;
  if (!isSame && found.length) say(`${found.length === 1 ? "One name" : `${found.length} names`}: ${found.map((agent) => agent.name).join(", ")}`);
  show(names, found.length > 0);
  names.replaceChildren(
    ...found.map((agent, index) => {
      const option = make("li", { role: "option", id: `name-${index}`, class: `agent-${agent.seat % 10}`, "aria-selected": String(index === at) }, make("span", { class: "dot", "aria-hidden": "true" }), make("span", { class: "name", text: agent.name }), make("span", { class: "aside", text: agent.name === agent.id ? "" : agent.id }));
      option.addEventListener("pointerdown", (event) => event.preventDefault()); // the focus stays in the field
      option.addEventListener("click", () => pick(agent));
      return option;
    }),
  );
  if (found.length) text.setAttribute("aria-activedescendant", `name-${at}`);
  else text.removeAttribute("aria-activedescendant");
}

function pick(agent) {
  const { from, words } = typed();
  const before = from === 0 && !words ? addressed(text.value) : null; // the name that this one takes the place of
  const to = before ? before.name.length + 2 : text.selectionStart;
  text.setRangeText(`@${agent.name} `, from, to, "end");
  settle();
}

// The button with the `@`: the list, where it names who replies.
export function mention() {
  text.focus();
  const isThere = Boolean(addressed(text.value.trimStart())) || text.value.startsWith("@");
  if (!isThere) text.setRangeText("@", 0, 0, "end");
  text.setSelectionRange(1, 1);
  left = -1;
  complete();
}

// -- keys and sending --------------------------------------------------------------------------------------------

// Who has no Shift at hand breaks lines with Enter, and sends by the button.
const isTouched = () => matchMedia("(hover: none) and (pointer: coarse)").matches;

// True where the key was meant for the composer.
export function onKey(event) {
  const isPlain = !event.shiftKey && !event.ctrlKey && !event.metaKey && !event.altKey;
  if (found.length && isPlain && ["ArrowDown", "ArrowUp", "Enter", "Tab", "Escape"].includes(event.key)) {
    event.preventDefault();
    if (event.key === "Escape") left = typed()?.from ?? -1;
    else if (event.key.startsWith("Arrow")) at = (at + (event.key === "ArrowDown" ? 1 : found.length - 1)) % found.length;
    else {
      pick(found[at]);
      return true;
    }
    complete();
    return true;
  }
  if (event.key !== "Enter" || !isPlain || isTouched()) return false;
  event.preventDefault();
  $("#say").requestSubmit();
  return true;
}

export async function speak() {
  const words = text.value;
  const button = $("#say-send");
  if (button.disabled) return;
  if (!words.trim()) {
    put($("#say-result"), "There is nothing to say yet.");
    text.focus();
    return;
  }
  const isNote = note.checked;
  setBusy(button, true);
  try {
    const to = isNote ? "" : (addressed(words.trimStart())?.agent.id ?? stranger(words.trimStart()));
    const done = await send("/say", { text: words, to, note: isNote, ...(instead && !isNote ? { proposal: true, instead } : {}) }, $("#say-result"));
    if (!done) return;
    if (text.value === words) text.value = ""; // what was typed while it was sent stays
    note.checked = false;
    instead = "";
    settle();
    toEnd();
  } finally {
    setBusy(button, false);
  }
}

export function begin() {
  text.value ||= stored(sessionStorage, key("say"));
  instead = stored(sessionStorage, key("instead"));
  text.addEventListener("input", settle);
  text.addEventListener("focus", () => text.closest("form").classList.add("open"));
  text.addEventListener("blur", complete);
  note.addEventListener("change", settle);
  document.addEventListener("selectionchange", () => document.activeElement === text && (found.length || typed()) && complete());
  document.addEventListener("dialogd:end", () => text.closest("form").classList.toggle("open", Boolean(text.value) || $("#say").contains(document.activeElement)));
  document.addEventListener("dialogd:end", explain); // also where the daemon is gone, and nobody is interrupted any more
  document.addEventListener("dialogd:state", () => {
    explain();
    if (typed()) complete(); // who takes part may be known only now
  });
  explain();
}
