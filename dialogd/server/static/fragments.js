// Pieces of HTML that the daemon makes and sanitises: fetched, put in without losing the reader's place, brought to life.
import { $, all, dress, make, put, refusal } from "./dom.js";

const shown = new WeakMap();

// The piece behind that path. Throws an error whose message says why there is none and what to do.
export async function fetchPiece(path, seconds = 20) {
  const response = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(seconds * 1000) });
  const text = await response.text();
  if (response.ok && response.headers.get("content-type")?.startsWith("text/html")) return text;
  throw new Error(reason(text, response.status));
}

// What a refusal says; where it is none of ours, its status.
export function reason(text, status) {
  try {
    return refusal(JSON.parse(text));
  } catch {
    return `The daemon answered with status ${status}.`;
  }
}

// Puts the piece into the box. What was open stays open, what was scrolled stays there, and so do focus and typed words.
// Gives whether anything changed.
export function place(box, html) {
  if (shown.get(box) === html) return false;
  const kept = shown.has(box) ? placeOf(box) : null;
  const holder = document.createElement("template");
  holder.innerHTML = html;
  dress(holder.content);
  box.replaceChildren(holder.content);
  shown.set(box, html);
  if (kept) putBack(box, kept);
  return true;
}

export function empty(box) {
  box.replaceChildren();
  shown.delete(box);
}

function placeOf(box) {
  const active = box.contains(document.activeElement) ? document.activeElement : null;
  const fields = all("input[id], textarea[id]", box).map((field) => [field.id, field.value, field.defaultValue]);
  return {
    open: new Map(all("details[id]", box).map((one) => [one.id, one.open])),
    scrolled: all("[id]", box).filter((one) => one.scrollLeft || one.scrollTop).map((one) => [one.id, one.scrollLeft, one.scrollTop]),
    typed: fields.filter(([, value, first]) => value !== first),
    focus: active ? { name: nameOf(active), at: named(box, nameOf(active)).indexOf(active) } : null,
  };
}

function putBack(box, { open, scrolled, typed, focus }) {
  for (const one of all("details[id]", box)) if (open.has(one.id)) one.open = open.get(one.id);
  for (const [id, value] of typed) {
    const field = inside(box, id);
    if (field) field.value = value;
  }
  for (const [id, left, top] of scrolled) inside(box, id)?.scrollTo(left, top);
  if (focus) (named(box, focus.name)[focus.at] ?? named(box, focus.name)[0] ?? heading(box))?.focus({ preventScroll: true });
}

const inside = (box, id) => $(`#${CSS.escape(id)}`, box);
const nameOf = (one) => [one.localName, one.id, one.getAttribute("href"), one.getAttribute("name"), one.id ? "" : one.textContent.slice(0, 80)].join("|");
const named = (box, name) => all("a, button, input, select, summary, [tabindex]", box).filter((one) => nameOf(one) === name);

// What takes the focus where the element that had it is gone.
export function heading(box) {
  const title = $("h2", box);
  title?.setAttribute("tabindex", "-1");
  return title;
}

// Where a form or a link leads that fetches a piece: its path with what was chosen and typed.
export function pathOf(form, submitter) {
  const chosen = new URLSearchParams();
  for (const [name, value] of new FormData(form)) if (value !== "") chosen.set(name, value);
  const path = submitter?.getAttribute("formaction") || form.dataset.get;
  const query = chosen.toString();
  return query ? `${path}?${query}` : path;
}

// A download: what keeps it from being made is said here, and not on a page of its own.
export async function save(link, said) {
  if (link.getAttribute("aria-disabled")) return;
  link.setAttribute("aria-disabled", "true");
  put(said, `Making the ${link.textContent.trim()} …`);
  try {
    const response = await fetch(link.getAttribute("href"), { cache: "no-store", signal: AbortSignal.timeout(120_000) });
    if (!response.ok) return put(said, reason(await response.text(), response.status));
    const name = response.headers.get("content-disposition")?.match(/filename="([\w.-]+)"/)?.[1] ?? "dialog";
    const url = URL.createObjectURL(await response.blob());
    make("a", { href: url, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(url), 60_000);
    put(said, `Saved as ${name}`);
  } catch {
    put(said, "The daemon does not answer; try it again.");
  } finally {
    link.removeAttribute("aria-disabled");
  }
  return undefined;
}
