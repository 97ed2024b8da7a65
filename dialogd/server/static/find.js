// Search inside the dialog: the daemon knows where the words stand, also in what is not on the page.
import { $, put, read, say, show, soon, visible } from "./dom.js";
import { goTo } from "./entries.js";

const box = $("#find");
const field = $("#find-words");
const list = $("#find-hits");
let hits = [];
let total = 0;
let at = -1;
let asked = "";

export function openFind() {
  show(box, true);
  $("#find-open").setAttribute("aria-expanded", "true");
  field.focus();
  field.select();
}

function close() {
  show(box, false);
  $("#find-open").setAttribute("aria-expanded", "false");
  CSS.highlights?.delete("found");
  $("#find-open").focus();
}

async function look() {
  const words = field.value.trim();
  if (words === asked) return;
  asked = words;
  const found = words ? await read(`/page/find?words=${encodeURIComponent(words.slice(0, 200))}`) : { total: 0, hits: [] };
  if (words !== asked) return;
  ({ hits, total } = found);
  at = -1;
  tell();
  highlight();
}

function tell() {
  const some = total > hits.length ? `the last ${hits.length} of ${total}` : `${total}`;
  const words = !asked ? "" : !total ? "Nothing found" : at < 0 ? `${some} found` : `${at + 1} of ${hits.length}`;
  put($("#find-count"), words);
  list.replaceChildren(...hits.slice(-200).reverse().map(row));
}

function row(hit) {
  const item = $("#find-hit").content.cloneNode(true).firstElementChild;
  const link = $("a", item);
  link.href = `#${hit.anchor}`;
  link.classList.add(hit.tone);
  put($(".name", item), hit.name);
  put($(".number", item), hit.anchor.startsWith("t") ? `turn ${hit.anchor.slice(1)}` : "");
  const before = hit.before.startsWith(`${hit.name} `) ? hit.before.slice(hit.name.length + 1) : hit.before; // it stands there already
  $(".words", item).append(visible(before), Object.assign(document.createElement("mark"), { textContent: visible(hit.words) }), visible(hit.after));
  if (hit === hits[at]) link.setAttribute("aria-current", "true");
  return item;
}

async function go(by) {
  await look();
  if (!hits.length) return;
  at = at < 0 ? (by > 0 ? 0 : hits.length - 1) : (at + by + hits.length) % hits.length;
  tell();
  await goTo(hits[at].anchor);
  highlight();
  field.focus({ preventScroll: true });
  say(`${at + 1} of ${hits.length}: ${hits[at].name}`);
}

// Paints the words where they are on the page, without touching its elements; not in every browser.
function highlight() {
  if (!CSS.highlights) return;
  CSS.highlights.delete("found");
  if (!asked || box.hidden) return;
  const wanted = new RegExp(asked.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&"), "giu");
  const ranges = [];
  const walk = document.createTreeWalker($("#log"), NodeFilter.SHOW_TEXT);
  while (walk.nextNode() && ranges.length < 1000) {
    for (const hit of walk.currentNode.data.matchAll(wanted)) {
      const range = new Range();
      range.setStart(walk.currentNode, hit.index);
      range.setEnd(walk.currentNode, hit.index + hit[0].length);
      ranges.push(range);
    }
  }
  CSS.highlights.set("found", new Highlight(...ranges));
}

export function begin() {
  const lookSoon = soon(() => look().catch(() => {}), 150);
  field.addEventListener("input", lookSoon);
  box.addEventListener("submit", (event) => {
    event.preventDefault();
    go(event.submitter?.value === "back" ? -1 : 1).catch(() => {});
  });
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && event.shiftKey && event.target === field) {
      event.preventDefault();
      go(-1).catch(() => {});
    }
    if (event.key !== "Escape") return;
    event.stopPropagation();
    close();
  });
  $("#find-open").addEventListener("click", () => (box.hidden ? openFind() : close()));
  $("#find-close").addEventListener("click", close);
  document.addEventListener("dialogd:entries", soon(highlight, 200));
}
