// The conversation: its entries as the daemon renders them, each once and in order, and the text being written.
// A part of it stands on the page, as much as a reader has around them; the rest is fetched when they come near it.
import { $, all, dress, make, put, read, show, soon, stored } from "./dom.js";

const PAGE = 100; // entries fetched at a time
const MOST = 400; // entries on the page
const NEAR = 2; // windows from an edge: then what lies behind it is fetched
const log = $("#log");
const live = $("#live");
const newTurns = $("#new-turns");
const end = $("#outcome");
const html = document.documentElement;

// What is shown: of which dialog, its last finished entry, how many entries there are in all, and whether the last is here.
const shown = { dialog: document.body.dataset.dialog, last: -1, chain: "", total: Number(document.body.dataset.total), isTail: true };
const bubbles = new Map();
let sticks = true;
let unread = 0;

const odd = new Map(); // by index: the versions of entries that are not shown as their daemons wrote them
const entriesHere = () => all(".entry[data-index]", log);
const firstHere = () => $(".entry[data-index]", log);
const lastHere = () => entriesHere().at(-1);
export const first = () => Number(firstHere()?.dataset.index ?? 0);
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
    const { isTail, last } = shown;
    // Further up only the number of those that came is told.
    const page = await read(`/page/entries?after=${last}&limit=${isTail ? PAGE : 1}`);
    if (last !== shown.last || isTail !== shown.isTail) continue;
    const isSame = page.dialog === shown.dialog && page.total > last;
    if (!isSame || (last >= 0 && page.anchor !== shown.chain)) return reload();
    const fresh = page.total - shown.total;
    shown.total = page.total;
    if (!isTail) return fresh > 0 && tellOfNews(fresh);
    add(page.entries);
    if (page.entries.length < PAGE) return undefined;
  }
}

// Another dialog, or one that was cut: begin anew.
export async function reload() {
  const page = await read(`/page/entries?limit=${PAGE}`);
  shown.dialog = page.dialog;
  live.replaceChildren();
  bubbles.clear();
  sticks = true;
  restand(page);
  toEnd();
}

// Shows these entries in the place of all others.
function restand(page) {
  odd.clear();
  log.replaceChildren();
  Object.assign(shown, { last: -1, chain: "", total: page.total, isTail: true });
  quietly(() => append(page.entries));
  shown.isTail = (page.entries.at(-1)?.index ?? -1) >= page.total - 1;
  afterwards(page.entries);
}

// What the stream told of the end, where the daemon is gone before it can be asked for the entry itself.
export function addAsTold(facts) {
  const id = `n${facts.id}`;
  if (document.getElementById(id) || !shown.isTail) return;
  const words = make("span", { class: "says", text: "The dialog was stopped" });
  const line = make("li", { class: "line mark" }, words, ...(facts.why ? [make("span", { class: "value", text: facts.why })] : []));
  const told = make("article", { class: "entry note thin system", id, "data-told": true }, make("ul", { class: "lines" }, line));
  if (facts.text) told.append(make("div", { class: "body plain", text: facts.text }));
  log.append(told);
  if (sticks) toEnd();
}

function append(entries) {
  all("[data-told]", log).forEach((told) => told.remove());
  // Only the last entry of a dialog can be unfinished.
  const old = log.lastElementChild;
  const known = new Map(old?.dataset.condition === "unfinished" ? [[old.dataset.version, old]] : []);
  const fresh = document.createDocumentFragment();
  for (const entry of entries) {
    if (entry.condition === "unfinished" && known.delete(entry.version)) continue;
    fresh.append(articleOf(entry));
    if (entry.condition !== "unfinished") Object.assign(shown, { last: entry.index, chain: entry.chain });
  }
  known.forEach((unfinished) => unfinished.remove());
  const added = [...fresh.children];
  log.append(fresh);
  return added;
}

// What has just come.
function add(entries) {
  const follows = sticks || isAtEnd();
  const added = append(entries);
  entries.forEach(settle);
  if (!added.length) return;
  if (!follows || document.hidden) markNew(added[0]);
  trim();
  afterwards(entries);
  if (follows) toEnd();
  else tellOfNews(added.length);
}

function afterwards(entries) {
  show($("#nothing"), !log.childElementCount);
  show($("#earlier"), first() > 0);
  html.classList.toggle("detached", !shown.isTail);
  document.dispatchEvent(new CustomEvent("dialogd:entries", { detail: entries }));
  standAnew();
}

// `html` was made and sanitised by the daemon; only the daemon's own HTML is taken by this page.
function articleOf(entry) {
  const article = elementOf(entry.html);
  dress(article);
  if (entry.version && entry.condition !== "unfinished") odd.set(entry.index, entry.version);
  else odd.delete(entry.index);
  return article;
}

function elementOf(text) {
  const holder = document.createElement("template");
  holder.innerHTML = text;
  return holder.content.firstElementChild;
}

// An entry that is here ends the bubble in which it was being written.
function settle(entry) {
  for (const [who, bubble] of bubbles) {
    if (entry.failed.includes(who) || (entry.number && entry.number >= bubble.turn)) pop(who);
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
    standAnew();
  }
  return undefined;
}

// Who stands behind which proposal changes with what is said later.
const standAnew = soon(() => {
  if ($(".stands", log)) restate().catch(() => {});
}, 250);

async function restate() {
  const now = await read("/page/standings");
  for (const place of all(".stands", log)) {
    const standing = now[place.dataset.ref];
    if (!standing) continue;
    place.dataset.state = standing.state;
    if (place.innerHTML !== standing.html) place.innerHTML = standing.html;
  }
}

// -- more of it, in both directions ------------------------------------------------------------------------------

let fetching = null;

// One request at a time; who asks meanwhile waits for that one.
function once(work) {
  fetching ??= work().finally(() => (fetching = null));
  return fetching;
}

export const earlier = () => once(prepend);

async function prepend() {
  const before = first();
  if (!before) return;
  const page = await read(`/page/entries?before=${before}&limit=${PAGE}`);
  if (page.dialog !== shown.dialog || first() !== before) return;
  quietly(() => inPlace(() => log.prepend(...page.entries.map(articleOf))));
  trim();
  afterwards(page.entries);
}

async function extend() {
  const { last, dialog } = shown;
  const page = await read(`/page/entries?after=${last}&limit=${PAGE}`);
  if (page.dialog !== dialog || shown.last !== last || shown.isTail) return;
  if (page.anchor !== shown.chain) return reload();
  quietly(() => append(page.entries));
  Object.assign(shown, { total: page.total, isTail: shown.last >= page.total - 1 || page.entries.length < PAGE });
  trim();
  afterwards(page.entries);
}

// What was said before is no news: not to screen readers.
function quietly(work) {
  log.setAttribute("aria-live", "off");
  work();
  setTimeout(() => log.setAttribute("aria-live", "polite"), 500);
}

// Changes what stands above or below, and leaves the reader where they read.
function inPlace(work) {
  const mark = atTop();
  const top = mark?.getBoundingClientRect().top;
  html.classList.add("prepending");
  work();
  if (mark?.isConnected) scrollBy({ top: mark.getBoundingClientRect().top - top, behavior: "instant" });
  html.classList.remove("prepending");
}

// Drops entries at the end that is further away: they are fetched again when somebody comes near.
function trim() {
  const here = entriesHere();
  const excess = here.length - MOST;
  if (excess <= 0) return;
  const { top, bottom } = log.getBoundingClientRect();
  const isAbove = sticks || -top > bottom - innerHeight;
  const gone = isAbove ? here.slice(0, excess) : here.slice(-excess);
  inPlace(() => gone.forEach((entry) => entry.remove()));
  if (!isAbove) {
    const { index, chain } = lastHere().dataset;
    Object.assign(shown, { last: Number(index), chain, isTail: false });
  }
}

// As long as an edge of what is here is near, what lies behind it is fetched: however fast it was come to.
let isFilling = false;
async function fill() {
  if (isFilling) return;
  isFilling = true;
  try {
    for (;;) {
      const { top, bottom } = log.getBoundingClientRect();
      if (first() > 0 && top > -NEAR * innerHeight && !isReadingAbove()) await earlier();
      else if (!shown.isTail && bottom < (NEAR + 1) * innerHeight) await once(extend);
      else return;
    }
  } catch {
    // No answer: the next scrolling tries again, and the page says who does not answer.
  } finally {
    isFilling = false;
  }
}

// What stands above the conversation is read in peace.
function isReadingAbove() {
  const { height, bottom } = $("#away").getBoundingClientRect();
  return height > 0 && bottom > $("#top").getBoundingClientRect().bottom;
}

// Shows the entry of that anchor (`t7`), from wherever it is. Gives whether there is one.
export async function goTo(anchor) {
  if (!/^[tn][0-9.]+$/.test(anchor)) return false;
  if (!document.getElementById(anchor)) {
    const page = await read(`/page/entries?at=${anchor.slice(1)}&limit=${PAGE}`);
    if (page.dialog !== shown.dialog || !page.entries.length) return false;
    sticks = false;
    restand(page);
  }
  const entry = document.getElementById(anchor);
  if (!entry) return false;
  sticks = false;
  entry.scrollIntoView();
  entry.setAttribute("tabindex", "-1");
  entry.focus({ preventScroll: true });
  beckonBack();
  fill();
  return true;
}

// To the very beginning.
async function toBeginning() {
  sticks = false;
  if (first() > 0) {
    const page = await read(`/page/entries?after=-1&limit=${PAGE}`);
    if (page.dialog === shown.dialog) restand(page);
  }
  scrollTo({ top: 0, behavior: "instant" });
  beckonBack();
}

export async function step(by) {
  const at = entriesHere().indexOf(atTop());
  if (at === 0 && by < 0 && first() > 0) await earlier().catch(() => {});
  const entries = entriesHere();
  const here = entries.indexOf(atTop());
  const isInside = entries[here] && entries[here].getBoundingClientRect().top < lineOfSight() - 40;
  const next = entries[Math.max(0, Math.min(entries.length - 1, by > 0 ? here + 1 : isInside ? here : here - 1))];
  if (next) goTo(next.id);
}

const lineOfSight = () => $("#top").getBoundingClientRect().bottom + 40;

// The entry at the top of the window: found by halves, as there may be hundreds.
function atTop() {
  const entries = entriesHere();
  const line = lineOfSight();
  let [low, high] = [0, entries.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (entries[middle].getBoundingClientRect().bottom > line) high = middle;
    else low = middle + 1;
  }
  return entries[low];
}

// -- being written -----------------------------------------------------------------------------------------------

// A turn that somebody writes grows: the daemon renders what there is of it, as it will be shown. It is read to nobody
// word by word.
export function write(piece) {
  const { by, turn } = piece;
  let bubble = bubbles.get(by);
  if (bubble && turn !== bubble.turn) {
    pop(by);
    bubble = undefined;
  }
  if (!bubble && !piece.text && !piece.done_chars) return;
  if (!bubble) {
    bubble = { element: null, turn, isAsking: false, isBehind: false };
    bubbles.set(by, bubble);
  }
  bubble.at = Date.now();
  bubble.isBehind = true;
  if (!bubble.isAsking) rewrite(by, bubble).catch(() => {});
}

async function rewrite(by, bubble) {
  bubble.isAsking = true;
  try {
    while (bubble.isBehind && bubbles.get(by) === bubble) {
      bubble.isBehind = false;
      const began = performance.now();
      const now = await read(`/page/writing?by=${encodeURIComponent(by)}`);
      if (bubbles.get(by) !== bubble) return;
      if (now.html && now.turn === bubble.turn) place(bubble, elementOf(now.html));
      // A long text takes a while: nobody is kept from working by being watched.
      await new Promise((done) => setTimeout(done, Math.max(60, 2 * (performance.now() - began))));
    }
  } finally {
    bubble.isAsking = false;
  }
}

function place(bubble, fresh) {
  if (bubble.element) turnInto(bubble.element, fresh);
  else {
    bubble.element = fresh;
    live.append(fresh);
  }
  if (sticks) toEnd();
}

// Changes only what differs: what stands there stays, with what is selected in it.
function turnInto(old, fresh) {
  if (old.isEqualNode(fresh)) return;
  if (old.nodeType !== 1 || fresh.nodeType !== 1 || old.tagName !== fresh.tagName) {
    old.replaceWith(fresh);
    return;
  }
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of [...fresh.attributes]) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  const [were, are] = [[...old.childNodes], [...fresh.childNodes]];
  are.forEach((node, at) => (were[at] ? turnInto(were[at], node) : old.append(node)));
  were.slice(are.length).forEach((node) => node.remove());
}

function pop(who) {
  bubbles.get(who)?.element?.remove();
  bubbles.delete(who);
}

// Bubbles of those who no longer think: their call has ended, or its turn has passed.
export function stillWriting(thinking, patience = 2500) {
  for (const [who, bubble] of bubbles) {
    if (!thinking.has(who) && Date.now() - bubble.at >= patience) pop(who);
  }
}

// -- what is new -------------------------------------------------------------------------------------------------

let newFrom = null; // the line above what came since the reader was at the end
let isSeen = true;

function markNew(entry) {
  if (!isSeen && newFrom?.isConnected) return;
  newFrom?.remove();
  newFrom = make("p", { id: "new-from" }, make("span", { text: "New" }));
  entry.before(newFrom);
  isSeen = false;
}

// What the reader had seen when they were last here: away.js keeps it.
function seenBefore() {
  try {
    return JSON.parse(stored(localStorage, `dialogd:seen:${shown.dialog}`)).total ?? 0;
  } catch {
    return 0;
  }
}

// Something at the end that the reader, further up, does not see.
export function beckon(words, isCalm = false) {
  if (sticks) return;
  put(newTurns, `${words} ↓`);
  newTurns.toggleAttribute("data-calm", isCalm);
  show(newTurns, true);
}

const endIsSeen = () => !end.hidden && end.getBoundingClientRect().top < innerHeight * 0.7;

function beckonBack() {
  if (!isAtEnd() && !endIsSeen()) beckon(unread ? (unread === 1 ? "1 new entry" : `${unread} new entries`) : "Latest", !unread);
}

function tellOfNews(count) {
  unread += count;
  beckonBack();
}

// -- scrolling ---------------------------------------------------------------------------------------------------

export function toEnd() {
  sticks = true;
  held = null;
  unread = 0;
  show(newTurns, false);
  if (shown.isTail) stayAtEnd();
  else toLatest().catch(() => {});
}

async function toLatest() {
  while (fetching) await fetching.catch(() => {}); // what is under way is something else: this would be lost
  if (sticks && !shown.isTail) await once(latest);
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

async function latest() {
  const page = await read(`/page/entries?limit=${PAGE}`);
  if (page.dialog !== shown.dialog) return reload();
  restand(page);
  return stayAtEnd();
}

// Once a frame: to measure the page after each of many changes would lay it out as often.
let isComing = false;
function stayAtEnd() {
  if (isComing) return;
  isComing = true;
  requestAnimationFrame(() => {
    isComing = false;
    if (sticks) scrollTo({ top: html.scrollHeight, behavior: "instant" });
  });
}

function isAtEnd() {
  return shown.isTail && html.scrollHeight - scrollY - innerHeight < 40;
}

function watchScrolling() {
  let [top, height] = [scrollY, html.scrollHeight];
  const onScroll = () => {
    // Only who moves up leaves the end: the end also moves away by itself, whenever an entry is added or gets its height.
    if (isAtEnd()) sticks = true;
    else if (scrollY < top && html.scrollHeight === height) sticks = false;
    [top, height] = [scrollY, html.scrollHeight];
    html.classList.toggle("sticking", sticks);
    if (sticks) {
      unread = 0;
      show(newTurns, false);
      if (!document.hidden) isSeen = true;
    } else if (endIsSeen()) show(newTurns, false);
    else if (newTurns.hidden) beckonBack();
    fill();
  };
  // What scrolls by itself, beside the conversation or in it, is no move through it.
  const leave = (event) => {
    if (event.target.closest?.("#panels, #more, #find, dialog, textarea, pre")) return;
    sticks = false;
    // Who moves on at the top of the page wants what is before, whatever stands there.
    if (scrollY <= 0 && first() > 0) earlier().catch(() => {});
  };
  addEventListener("scroll", onScroll, { passive: true });
  addEventListener("resize", () => fill(), { passive: true });
  addEventListener("touchmove", leave, { passive: true });
  addEventListener("wheel", (event) => event.deltaY < 0 && leave(event), { passive: true });
  addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.target.matches("input, textarea, select") || event.altKey || event.metaKey) return;
    if (["ArrowUp", "PageUp", "Home"].includes(event.key)) leave(event);
    if (event.target.closest("#panels, #more, dialog, pre")) return;
    // What is not on the page yet is part of the conversation, too.
    if (event.key === "Home" || event.key === "End") {
      event.preventDefault();
      if (event.key === "End") toEnd();
      else toBeginning().catch(() => {});
    }
  });
  // In a rule and not in an attribute, and inherited by nobody: hundreds of entries are not styled anew for it.
  const measures = new CSSStyleSheet();
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, measures];
  let before = "";
  const bars = new ResizeObserver(() => {
    const rule = `html, #banner, #panels, #find { --top: ${$("#top").offsetHeight}px; --bottom: ${$("#composer").offsetHeight}px }`;
    if (rule !== before) measures.replaceSync(rule);
    before = rule;
    stayThere();
  });
  bars.observe($("#top"));
  bars.observe($("#composer"));
  // Heights settle late (fonts, pictures of the system): who is at the end stays there.
  new ResizeObserver(() => (sticks ? stayAtEnd() : stayThere())).observe(document.body);
  document.addEventListener("visibilitychange", () => !document.hidden && sticks && isAtEnd() && setTimeout(() => (isSeen = true), 1000));
}

// What the page was delivered with.
export function begin() {
  dress(log);
  for (const one of all('[data-version]:not([data-version=""], [data-condition="unfinished"])', log)) odd.set(Number(one.dataset.index), one.dataset.version);
  const last = Number(document.body.dataset.last);
  const entry = last >= 0 ? $(`[data-index="${last}"]`, log) : null;
  Object.assign(shown, { last, chain: entry?.dataset.chain ?? "" });
  const seen = seenBefore();
  const fresh = seen > first() ? $(`[data-index="${seen}"]`, log) : null;
  if (fresh) markNew(fresh);
  isSeen = true;
  afterwards([]);
  watchScrolling();
  if (log.childElementCount && !location.hash) toEnd();
}

// The entry at the top of the window, to go on reading there.
export function placeNow() {
  return sticks ? "" : (atTop()?.id ?? "");
}
