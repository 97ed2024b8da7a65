// While you were away: what happened since the reader last looked, above the conversation. What was seen is kept here.
import { $, put, say, stored } from "./dom.js";
import { isSticking, toEnd } from "./entries.js";
import { empty, fetchPiece, pathOf, place } from "./fragments.js";

const MANY = 3; // new entries that are worth a digest
const LONG = 10 * 60 * 1000; // milliseconds after which any are
const PAUSE = 3000; // milliseconds between two fetches while the dialog goes on, at least
const box = $("#away");
const now = { dialog: "", turn: 0, total: 0 };
let path = ""; // of the digest that is shown
let seen = null;
let isAsking = false;
let took = 0;

const key = (name) => `dialogd:${name}:${now.dialog}`;

function kept() {
  try {
    const { turn, total, at } = JSON.parse(stored(localStorage, key("seen")));
    return [turn, total, at].every(Number.isFinite) ? { turn, total, at } : null;
  } catch {
    return null;
  }
}

// Seen is what stood at the end of the conversation while the end was in sight, and so was the page.
function see({ always = false } = {}) {
  if (!now.dialog || isAsking || document.hidden || !(always || isSticking())) return;
  seen = { turn: now.turn, total: now.total, at: Date.now() };
  stored(localStorage, key("seen"), JSON.stringify(seen));
}

function isNews({ isReturn }) {
  const from = seen ?? { turn: 0, total: 0, at: Date.now() };
  const fresh = now.total - from.total;
  const isLong = Date.now() - from.at > LONG;
  if (now.turn < 2) return false; // the question alone is no news to whoever asked it
  return fresh > 0 && (isLong || (!isReturn && fresh >= MANY));
}

async function tell({ isReturn = false } = {}) {
  seen = kept();
  const chosen = stored(sessionStorage, key("away")); // a digest that was not dismissed stays, also when the page is loaded anew
  if (!chosen && !isNews({ isReturn })) return see();
  const turn = seen?.turn ?? 0;
  isAsking = true;
  try {
    await show(chosen || `/page/away?since=${turn}&seen=${turn}`);
    if (!chosen && $("[data-nothing]", box)) return forget();
    if (seen && !location.hash && document.body.dataset.phase !== "ended") scrollTo(0, 0); // who was never here has not been away, and watches what goes on
    say(`${$("h2", box)?.textContent ?? ""}: a summary stands above the conversation.`);
  } catch {
    // The conversation says all of it; the next look tries again.
  } finally {
    isAsking = false;
  }
  return undefined;
}

async function show(wanted) {
  const began = performance.now();
  const html = await fetchPiece(wanted);
  took = performance.now() - began;
  path = wanted;
  place(box, html);
  stored(sessionStorage, key("away"), path);
}

function forget() {
  path = "";
  empty(box);
  stored(sessionStorage, key("away"), "");
}

function dismiss() {
  forget();
  see({ always: true });
  $("#log").focus({ preventScroll: true });
  toEnd();
}

async function choose(form) {
  const last = new URLSearchParams(path.split("?")[1]).get("seen") ?? "0";
  try {
    await show(`${pathOf(form)}&seen=${last}`);
  } catch (error) {
    put($("h2", box), error.message);
  }
}

let timer = 0;
function grow() {
  if (!path || timer) return;
  timer = setTimeout(() => {
    timer = 0;
    if (path && !document.hidden) show(path).catch(() => {});
  }, Math.max(PAUSE, 20 * took));
}

export function begin() {
  let left = 0;
  document.addEventListener("dialogd:state", ({ detail }) => {
    const isOther = detail.dialog !== now.dialog;
    Object.assign(now, { dialog: detail.dialog, turn: detail.turn, total: detail.total });
    if (!isOther) return see();
    path = "";
    empty(box);
    return detail.dialog ? tell() : undefined;
  });
  document.addEventListener("dialogd:entries", () => {
    see();
    grow();
  });
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) left = Date.now();
    else if (now.dialog && !path && Date.now() - left > LONG) tell({ isReturn: true });
    else grow();
  });
  addEventListener("scroll", () => seen && seen.total < now.total && see(), { passive: true });
  box.addEventListener("click", (event) => event.target.closest(".dismiss") && dismiss());
  box.addEventListener("change", (event) => event.target.form?.dataset.get && choose(event.target.form));
  box.addEventListener("submit", (event) => {
    event.preventDefault();
    choose(event.target);
  });
}
