// The conversation: its entries as the daemon renders them, each once and in order, and the text being written.
import { $, all, dress, make, put, read, show, visible } from "./dom.js";

const PAGE = 200;
const log = $("#log");
const live = $("#live");
const newTurns = $("#new-turns");

// What is shown: of which dialog, from which index on, and the last finished entry.
const shown = { dialog: document.body.dataset.dialog, last: -1, chain: "" };
const bubbles = new Map();
let sticks = true;
let unread = 0;
let players = new Map();

// Words may arrive before it is known who the agents are: then their bubble gets name and colour later.
export function setPlayers(agents) {
  players = new Map(agents.map((agent) => [agent.id, agent]));
  bubbles.forEach(sign);
}

const odd = new Map(); // by index: the versions of entries that are not shown as their daemons wrote them
const entriesHere = () => all(".entry[data-index]", log);
export const first = () => Number($(".entry[data-index]", log)?.dataset.index ?? 0);
export const isSticking = () => sticks;

// -- reading on --------------------------------------------------------------------------------------------------

let reading = null;
let again = false;

// Fetches what came since, one request at a time: nothing is lost and nothing doubled, whoever calls and how often.
export function catchUp() {
  again = true;
  reading ??= (async () => {
    try {
      while (again) {
        again = false;
        await readOn();
      }
    } finally {
      reading = null;
    }
  })();
  return reading;
}

async function readOn() {
  for (;;) {
    const page = await read(`/page/entries?after=${shown.last}&limit=${PAGE}`);
    const isSame = page.dialog === shown.dialog && page.total > shown.last;
    if (!isSame || (shown.last >= 0 && page.anchor !== shown.chain)) return reload();
    add(page.entries);
    if (page.entries.length < PAGE) return;
  }
}

// Another dialog, or one that was cut: begin anew.
export async function reload() {
  const page = await read(`/page/entries?limit=${PAGE}`);
  log.replaceChildren();
  live.replaceChildren();
  bubbles.clear();
  odd.clear();
  Object.assign(shown, { dialog: page.dialog, last: -1, chain: "" });
  sticks = true;
  add(page.entries, { isNews: false });
}

// What the stream told of the end, where the daemon is gone before it can be asked for the entry itself.
export function addAsTold(facts) {
  const id = `n${facts.id}`;
  if (document.getElementById(id)) return;
  const marks = make("ul", { class: "marks", "aria-label": "Marks" }, ...(facts.marks ?? []).map((text) => make("li", { class: "mark", text })));
  const head = make("header", { class: "entry-head" }, make("h3", {}, make("span", { class: "dot", "aria-hidden": "true" }), make("span", { class: "name", text: facts.name })));
  log.append(make("article", { class: "entry note system", id, "data-told": true }, head, make("div", { class: "body plain", text: facts.text ?? "" }), marks));
  if (sticks) toEnd();
}

function add(entries, { isNews = true } = {}) {
  all("[data-told]", log).forEach((told) => told.remove());
  // Only the last entry of a dialog can be unfinished.
  const old = log.lastElementChild;
  const known = new Map(old?.dataset.condition === "unfinished" ? [[old.dataset.version, old]] : []);
  const fresh = document.createDocumentFragment();
  let count = 0;
  for (const entry of entries) {
    const same = known.get(entry.version);
    if (same && entry.condition === "unfinished") {
      known.delete(entry.version);
      continue;
    }
    fresh.append(articleOf(entry));
    count += 1;
    settle(entry);
    if (entry.condition !== "unfinished") Object.assign(shown, { last: entry.index, chain: entry.chain });
  }
  known.forEach((unfinished) => unfinished.remove());
  if (!count) return;
  const follows = sticks || isAtEnd();
  log.append(fresh);
  afterwards();
  if (follows) toEnd();
  else if (isNews) tellOfNews(count);
  document.dispatchEvent(new CustomEvent("dialogd:entries", { detail: entries }));
}

function afterwards() {
  show($("#nothing"), !log.childElementCount);
  show($("#earlier"), first() > 0);
}

// `html` was made and sanitised by the daemon; it is the only HTML that this page takes.
function articleOf(entry) {
  const holder = document.createElement("template");
  holder.innerHTML = entry.html;
  dress(holder.content);
  if (entry.version && entry.condition !== "unfinished") odd.set(entry.index, entry.version);
  else odd.delete(entry.index);
  return holder.content.firstElementChild;
}

// An entry that is here ends the bubble in which it was being written.
function settle(entry) {
  for (const [who, bubble] of bubbles) {
    const failed = entry.marks.some((mark) => mark.name === "AGENT_ERROR" && mark.value.split(" | ")[0] === who);
    if (failed || (entry.number && entry.number >= bubble.turn)) pop(who);
  }
}

// Entries that are shown otherwise by now: edited in the file, withdrawn.
export async function refreshChanged({ changed, changed_from: from }) {
  const here = (index) => index >= Math.max(first(), from) && index <= shown.last;
  const now = new Map(Object.entries(changed).map(([index, version]) => [Number(index), version]));
  const indexes = [...new Set([...now.keys(), ...odd.keys()])];
  for (const index of indexes.filter((one) => here(one) && odd.get(one) !== now.get(one)).slice(0, 50)) {
    const page = await read(`/page/entries?after=${index - 1}&limit=1`);
    const entry = page.entries[0];
    const old = $(`.entry[data-index="${index}"]`, log);
    if (page.dialog !== shown.dialog || entry?.index !== index || !old) return catchUp();
    old.replaceWith(articleOf(entry));
    if (index === shown.last) shown.chain = entry.chain;
  }
  return undefined;
}

// -- earlier entries ---------------------------------------------------------------------------------------------

let fetchingEarlier = null;

export function earlier() {
  fetchingEarlier ??= prepend().finally(() => (fetchingEarlier = null));
  return fetchingEarlier;
}

async function prepend() {
  const before = first();
  if (!before) return;
  const page = await read(`/page/entries?before=${before}&limit=${PAGE}`);
  if (page.dialog !== shown.dialog || first() !== before) return;
  const mark = log.firstElementChild;
  const top = mark.getBoundingClientRect().top;
  // What was said before is no news: not to screen readers, and not to the place where the reader reads.
  log.setAttribute("aria-live", "off");
  document.documentElement.classList.add("prepending");
  // In a box of its own, which costs nothing while it is out of sight, however many there are.
  log.prepend(make("div", { class: "chunk" }, ...page.entries.map(articleOf)));
  afterwards();
  scrollBy(0, mark.getBoundingClientRect().top - top);
  document.documentElement.classList.remove("prepending");
  setTimeout(() => log.setAttribute("aria-live", "polite"), 500);
  document.dispatchEvent(new CustomEvent("dialogd:entries", { detail: page.entries }));
}

// Shows the entry of that anchor (`t7`), from wherever it is. Gives whether there is one.
export async function goTo(anchor) {
  if (!/^[tn][0-9.]+$/.test(anchor)) return false;
  while (!document.getElementById(anchor) && first() > 0) {
    const before = first();
    await earlier();
    if (first() === before) break;
  }
  const entry = document.getElementById(anchor);
  if (!entry) return false;
  sticks = false;
  // Twice: what comes into sight gets its real height, and moves what stands below it.
  entry.scrollIntoView();
  requestAnimationFrame(() => entry.scrollIntoView());
  entry.setAttribute("tabindex", "-1");
  entry.focus({ preventScroll: true });
  return true;
}

export function step(by) {
  const entries = entriesHere();
  const line = $("#top").getBoundingClientRect().bottom + 40;
  let at = entries.findIndex((entry) => entry.getBoundingClientRect().bottom > line);
  if (at < 0) at = entries.length - 1;
  const isInside = entries[at] && entries[at].getBoundingClientRect().top < line - 80;
  const next = entries[Math.max(0, Math.min(entries.length - 1, by > 0 ? at + 1 : isInside ? at : at - 1))];
  if (next) goTo(next.id);
}

// -- being written -----------------------------------------------------------------------------------------------

// A piece of the turn that somebody is writing. It is text, and it is read to nobody word by word.
export function write(piece) {
  const { by, turn } = piece;
  const words = typeof piece.text === "string" ? piece.text : typeof piece.line === "string" ? `${piece.line}\n` : "";
  let bubble = bubbles.get(by);
  if (bubble && (piece.reset || turn !== bubble.turn)) {
    pop(by);
    bubble = undefined;
  }
  if (!words && !bubble) return;
  bubble ??= open(by, turn, piece.done_chars > words.length + 1);
  bubble.text.appendData(visible(words));
  bubble.at = Date.now();
  if (sticks) toEnd();
}

function open(by, turn, isLate) {
  const text = document.createTextNode(isLate ? "… " : "");
  const head = make("p", { class: "entry-head" }, make("span", { class: "dot", "aria-hidden": "true" }), make("span", { class: "name" }), make("span", { class: "aside", text: ` is writing turn ${turn}` }));
  const words = make("div", { class: "body plain" }, text);
  const element = make("div", { class: "entry writing", "data-by": by }, head, words);
  live.append(element);
  const bubble = { element, text, turn, at: Date.now() };
  bubbles.set(by, bubble);
  sign(bubble, by);
  return bubble;
}

function sign(bubble, by) {
  const agent = players.get(by);
  put($(".name", bubble.element), agent?.name ?? by);
  bubble.element.className = `entry writing agent-${(agent?.seat ?? 0) % 10}`;
}

function pop(who) {
  bubbles.get(who)?.element.remove();
  bubbles.delete(who);
}

// Bubbles of those who no longer think: their call has ended, or its turn has passed.
export function stillWriting(thinking, patience = 2500) {
  for (const [who, bubble] of bubbles) {
    if (!thinking.has(who) && Date.now() - bubble.at >= patience) pop(who);
  }
}

// -- scrolling ---------------------------------------------------------------------------------------------------

export function toEnd() {
  sticks = true;
  held = null;
  unread = 0;
  show(newTurns, false);
  stayAtEnd();
}

// Something below the conversation is to be read from its beginning: the page stays there, and not at its end, until
// the reader moves.
let held = null;
export function stayAt(element) {
  sticks = false;
  held = element;
  requestAnimationFrame(stayThere);
}
const stayThere = () => held?.scrollIntoView();
for (const kind of ["wheel", "touchmove", "keydown", "pointerdown"]) addEventListener(kind, () => (held = null), { passive: true });

// Once a frame: to measure the page after each of many changes would lay it out as often.
let isComing = false;
function stayAtEnd() {
  if (isComing) return;
  isComing = true;
  requestAnimationFrame(() => {
    isComing = false;
    if (sticks) scrollTo(0, document.documentElement.scrollHeight);
  });
}

// Something at the end that the reader, further up, does not see.
export function beckon(words) {
  if (sticks) return;
  put(newTurns, `${words} ↓`);
  show(newTurns, true);
}

function tellOfNews(count) {
  unread += count;
  put(newTurns, unread === 1 ? "1 new entry ↓" : `${unread} new entries ↓`);
  show(newTurns, true);
}

function isAtEnd() {
  const page = document.documentElement;
  return page.scrollHeight - scrollY - innerHeight < 40;
}

function watchScrolling() {
  const page = document.documentElement;
  let [top, height] = [scrollY, page.scrollHeight];
  const onScroll = () => {
    // Only who moves up leaves the end: the end also moves away by itself, whenever an entry is added or gets its height.
    if (isAtEnd()) sticks = true;
    else if (scrollY < top && page.scrollHeight === height) sticks = false;
    [top, height] = [scrollY, page.scrollHeight];
    page.classList.toggle("sticking", sticks);
    if (sticks && unread) {
      unread = 0;
      show(newTurns, false);
    }
  };
  // What scrolls by itself, beside the conversation or in it, is no move through it.
  const leave = (event) => (sticks = sticks && Boolean(event.target.closest?.("#panels, #more, dialog, textarea, pre")));
  addEventListener("scroll", onScroll, { passive: true });
  addEventListener("touchmove", leave, { passive: true });
  addEventListener("wheel", (event) => event.deltaY < 0 && leave(event), { passive: true });
  addEventListener("keydown", (event) => ["ArrowUp", "PageUp", "Home"].includes(event.key) && !event.target.matches("input, textarea, select") && leave(event));
  // Heights settle late (fonts, entries that come into sight): who is at the end stays there.
  // In a rule and not in an attribute, and inherited by nobody: two thousand entries are not styled anew for it.
  const measures = new CSSStyleSheet();
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, measures];
  let before = "";
  const bars = new ResizeObserver(() => {
    const rule = `html, #banner, #panels { --top: ${$("#top").offsetHeight}px; --bottom: ${$("#composer").offsetHeight}px }`;
    if (rule !== before) measures.replaceSync(rule);
    before = rule;
    stayThere();
  });
  bars.observe($("#top"));
  bars.observe($("#composer"));
  new ResizeObserver(() => (sticks ? stayAtEnd() : stayThere())).observe(document.body);
  new IntersectionObserver(
    (seen) => {
      if (seen.some((one) => one.isIntersecting) && scrollY > 0) earlier().catch(() => {});
    },
    { rootMargin: "600px 0px 0px 0px" },
  ).observe($("#earlier-line"));
}

// What the page was delivered with.
export function begin() {
  dress(log);
  for (const one of all('[data-version]:not([data-version=""], [data-condition="unfinished"])', log)) odd.set(Number(one.dataset.index), one.dataset.version);
  const last = Number(document.body.dataset.last);
  const entry = last >= 0 ? $(`[data-index="${last}"]`, log) : null;
  Object.assign(shown, { last, chain: entry?.dataset.chain ?? "" });
  afterwards();
  watchScrolling();
  if (log.childElementCount && !location.hash) toEnd();
}

// The entry at the top of the window, to go on reading there.
export function placeNow() {
  const line = $("#top").getBoundingClientRect().bottom;
  const entry = entriesHere().find((one) => one.getBoundingClientRect().bottom > line);
  return sticks ? "" : (entry?.id ?? "");
}
