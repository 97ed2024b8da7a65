// What every part of the page uses: elements, requests, sentences for screen readers. Text is put in as text.

export const $ = (selector, root = document) => root.querySelector(selector);
// What turns the direction of writing, or cannot be seen, is shown as a sign: the same as the daemon does.
const UNSEEN = /[\u00ad\u034f\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\uffa0\ufff9-\ufffb\u{e0000}-\u{e007f}]/gu;
export const visible = (text) => String(text ?? "").replace(UNSEEN, "\ufffd");

export const all = (selector, root = document) => [...root.querySelectorAll(selector)];

export function make(tag, { text = "", ...attributes } = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== false && value != null) element.setAttribute(name, value === true ? "" : visible(value));
  }
  if (text) element.textContent = visible(text);
  element.append(...children);
  return element;
}

// Sets a text only where it differs: what does not change is not laid out, or announced, again.
export function put(element, text) {
  const words = visible(text);
  if (element.textContent !== words) element.textContent = words;
}

export const show = (element, yes) => element.toggleAttribute("hidden", !yes);

// An answer of the daemon: its JSON. Throws where there is none in time, or where it is no answer of ours.
export async function ask(path, { body, seconds = 8 } = {}) {
  const posts = body !== undefined;
  const response = await fetch(path, {
    method: posts ? "POST" : "GET",
    headers: posts ? { "Content-Type": "application/json" } : {},
    body: posts && body !== null ? JSON.stringify(body) : undefined,
    signal: AbortSignal.timeout(seconds * 1000),
    cache: "no-store",
  });
  const facts = await response.json();
  return { ok: response.ok, status: response.status, facts };
}

export async function read(path, seconds) {
  const answer = await ask(path, { seconds });
  if (!answer.ok) throw new Error(answer.facts.detail || `status ${answer.status}`);
  return answer.facts;
}

// What a refusal says and what to do about it, in one line.
export const refusal = (facts) => [facts.detail, facts.fix].filter(Boolean).join(". To go on: ") || "It was refused.";

// Say it to screen readers, once.
export function say(text) {
  const place = $("#said");
  const words = visible(text);
  place.textContent = place.textContent === words ? `${words}\u00a0` : words;
}

export function clock(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  const two = (number) => String(number).padStart(2, "0");
  const hours = Math.floor(whole / 3600);
  const rest = `${two(Math.floor((whole % 3600) / 60))}:${two(whole % 60)}`;
  return hours ? `${hours}:${rest}` : rest;
}

// What needs the reader's own clock and clipboard, in HTML of the daemon's.
export function dress(root) {
  for (const time of all("time", root)) {
    const at = new Date(time.dateTime);
    if (Number.isNaN(at.getTime())) continue;
    const isToday = at.toDateString() === new Date().toDateString();
    const isThisYear = at.getFullYear() === new Date().getFullYear();
    const day = isToday ? {} : { year: isThisYear ? undefined : "numeric", month: "short", day: "numeric" };
    time.textContent = at.toLocaleString([], { ...day, hour: "2-digit", minute: "2-digit" });
    time.title = at.toLocaleString();
  }
  for (const box of all(".code", root)) {
    box.append(make("button", { type: "button", class: "copy", "data-do": "copy", text: "Copy", "aria-label": "Copy this code" }));
  }
}

export function timeOfDay(date) {
  return date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });
}

// Calls `work` soon, once for any number of calls in between.
export function soon(work, milliseconds) {
  let timer = 0;
  return () => {
    if (timer) return;
    timer = setTimeout(() => {
      timer = 0;
      work();
    }, milliseconds);
  };
}

export function stored(area, key, value) {
  try {
    if (value === undefined) return area.getItem(key) ?? "";
    if (value) area.setItem(key, value);
    else area.removeItem(key);
  } catch {
    // A browser that keeps nothing: the page works all the same.
  }
  return "";
}
