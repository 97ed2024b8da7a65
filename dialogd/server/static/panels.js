// What stands beside the conversation: tabs, each a piece of HTML that is fetched while it is open and in sight.
import { $, all, ask, make, put, refusal, stored } from "./dom.js";
import { begin as beginAway } from "./away.js";
import { fetchPiece, heading, pathOf, place, save } from "./fragments.js";

const TABS = [
  { id: "tasks", title: "Tasks", path: "/page/tasks", follows: true },
  { id: "positions", title: "Positions", path: "/page/positions", follows: true },
  { id: "flow", title: "Flow", path: "/page/flow", follows: true },
  { id: "result", title: "Result", path: "/page/result", follows: true },
  { id: "history", title: "History", path: "/page/history", follows: false },
];
const PAUSE = 600; // milliseconds between two fetches of one that follows the dialog, at least
const panels = $("#panels");
let open = null;

// -- tabs: one of them is in the tab order, arrows lead to the others ----------------------------------------------

function build() {
  const list = make("div", { role: "tablist", "aria-label": "Beside the conversation" });
  const wide = make("button", { type: "button", id: "panels-wide", class: "quiet", text: "Wide" });
  wide.addEventListener("click", () => widen(!document.body.classList.contains("wide-panels")));
  $("#panel-tabs").append(list, wide);
  for (const tab of TABS) {
    tab.button = make("button", { type: "button", role: "tab", id: `tab-${tab.id}`, "aria-controls": `panel-${tab.id}`, text: tab.title });
    tab.said = make("p", { class: "said", role: "status" });
    tab.box = make("div", { class: "piece" });
    tab.panel = make("div", { role: "tabpanel", id: `panel-${tab.id}`, "aria-labelledby": `tab-${tab.id}`, tabindex: "0", hidden: true }, tab.said, tab.box);
    tab.button.addEventListener("click", () => choose(tab, { isWish: true }));
    Object.assign(tab, { shows: tab.path, isOld: true, wanted: 0 });
    list.append(tab.button);
    $("#panel-body").append(tab.panel);
  }
  list.addEventListener("keydown", onArrow);
}

function widen(yes) {
  document.body.classList.toggle("wide-panels", yes);
  $("#panels-wide").setAttribute("aria-pressed", String(yes));
  stored(localStorage, "dialogd:wide", yes ? "yes" : "");
}

function choose(tab, { isWish = false } = {}) {
  open = tab;
  for (const one of TABS) {
    const isOpen = one === tab;
    one.button.setAttribute("aria-selected", String(isOpen));
    one.button.tabIndex = isOpen ? 0 : -1;
    one.panel.hidden = !isOpen;
  }
  if (isWish) stored(localStorage, "dialogd:tab", tab.id);
  if (!tab.follows) tab.isOld = true;
  look();
}

function onArrow(event) {
  const shown = TABS.filter((tab) => !tab.button.hidden);
  const at = shown.indexOf(open);
  const places = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: shown.length - 1 };
  if (!(event.key in places)) return;
  event.preventDefault();
  const tab = shown[(places[event.key] + shown.length) % shown.length];
  choose(tab, { isWish: true });
  tab.button.focus();
}

// -- fetching ----------------------------------------------------------------------------------------------------

const isInSight = () => !document.hidden && panels.getClientRects().length > 0;

// Fetches what is open, in sight and no longer as the dialog is.
function look() {
  if (open?.isOld && isInSight()) load(open);
}

// `isStep`: the reader has chosen another piece, and reads on at its heading.
async function load(tab, path = tab.shows, { isStep = false } = {}) {
  const wanted = ++tab.wanted;
  tab.isOld = false;
  tab.panel.setAttribute("aria-busy", "true");
  const began = performance.now();
  try {
    const html = await fetchPiece(path);
    if (wanted !== tab.wanted) return;
    tab.shows = path;
    put(tab.said, "");
    place(tab.box, html);
    if (isStep) arrive(tab);
  } catch (error) {
    if (wanted !== tab.wanted) return;
    put(tab.said, error.name === "Error" ? error.message : "The daemon does not answer; this is fetched again as soon as it does.");
    tab.isOld = error.name !== "Error";
  } finally {
    if (wanted === tab.wanted) tab.panel.removeAttribute("aria-busy");
    tab.took = performance.now() - began;
  }
}

function arrive(tab) {
  const at = $("[data-at]", tab.box)?.dataset.at;
  const target = at ? document.getElementById(at) : null;
  if (target) {
    target.setAttribute("tabindex", "-1");
    target.focus({ preventScroll: true });
    target.scrollIntoView({ block: "start" });
  } else if (!tab.box.contains(document.activeElement)) {
    heading(tab.box)?.focus({ preventScroll: true });
    panels.scrollTo(0, 0);
  }
}

// What follows the dialog is old now. The longer a piece takes to make, the longer the next one is waited for.
let timer = 0;
function grow() {
  for (const tab of TABS) tab.isOld ||= tab.follows;
  if (timer) return;
  timer = setTimeout(() => {
    timer = 0;
    look();
  }, Math.max(PAUSE, 10 * (open?.took ?? 0)));
}

// -- a build: its tasks have a tab, its merge a sheet ---------------------------------------------------------------

const [tasks] = TABS;

// Also of a page that was opened before the dialog became a build.
function offerTasks(isBuild) {
  if (tasks.button.hidden !== isBuild) return;
  tasks.button.hidden = !isBuild;
  if (isBuild && !stored(localStorage, "dialogd:tab")) choose(tasks);
  else if (!isBuild && open === tasks) choose(TABS[1]);
}

async function toTasks(path) {
  if (!isInSight()) $("#panels-open").click();
  choose(tasks);
  await load(tasks, path, { isStep: true });
  $("#panel-tabs").scrollIntoView({ block: "start" });
}

async function takeover(path = "/page/takeover") {
  const sheet = $("#takeover");
  put($(":scope > .said", sheet), "");
  try {
    place($("#takeover-piece"), await fetchPiece(path));
  } catch (error) {
    put($(":scope > .said", sheet), error.name === "Error" ? error.message : "The daemon does not answer.");
  }
  if (!sheet.open) sheet.showModal();
}

document.addEventListener("click", (event) => {
  const button = event.target.closest('[data-do="task"], [data-do="tasks"], [data-do="takeover"]');
  if (!button) return;
  if (button.dataset.do === "takeover") takeover(button.dataset.path);
  else toTasks(button.dataset.task ? `/page/tasks/${button.dataset.task}` : "/page/tasks");
});
$("#takeover").addEventListener("submit", (event) => {
  if (!event.target.dataset.get) return;
  event.preventDefault();
  takeover(pathOf(event.target));
});

// -- what is clicked and sent --------------------------------------------------------------------------------------

function onClick(event) {
  const link = event.target.closest("a.get, a.download");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  if (link.classList.contains("download")) save(link, $(".downloads + .said", link.closest(".piece")));
  else load(open, link.getAttribute("href"), { isStep: true });
}

function onSubmit(event) {
  const form = event.target;
  if (form.dataset.get) {
    event.preventDefault();
    load(open, pathOf(form, event.submitter), { isStep: true });
  } else if (form.dataset.record) {
    event.preventDefault();
    record(form, event.submitter);
  }
}

// A form that a click unfolds below the fold comes into view, and can be typed into.
function unfolded(event) {
  const details = event.target.closest("summary")?.parentElement;
  const form = details && !details.open && $("form", details);
  if (!form) return;
  requestAnimationFrame(() => {
    form.scrollIntoView({ block: "nearest" });
    $("textarea, input:not([type=hidden])", form)?.focus({ preventScroll: true });
  });
}

// How a decision turned out.
async function record(form, submitter) {
  const said = $(".said", form);
  const body = { why: $("[name=why]", form).value.trim(), [submitter?.name || "outcome"]: submitter?.value || "worked" };
  if (!body.why) return put(said, "Say why, in a sentence.");
  try {
    const answer = await ask(form.dataset.record, { body });
    put(said, answer.ok ? "Remembered." : refusal(answer.facts));
    if (!answer.ok) return undefined;
    form.reset();
    await load(open, open.shows);
  } catch {
    put(said, "The daemon does not answer; nothing was written down.");
  }
  return undefined;
}

// -- wiring ------------------------------------------------------------------------------------------------------

build();
tasks.button.hidden = !("build" in document.body.dataset);
widen(stored(localStorage, "dialogd:wide") === "yes");
const kept = TABS.find((tab) => tab.id === stored(localStorage, "dialogd:tab")) ?? tasks;
choose(kept.button.hidden ? TABS[1] : kept);
panels.addEventListener("click", onClick);
panels.addEventListener("click", unfolded);
panels.addEventListener("submit", onSubmit);
panels.addEventListener("change", (event) => {
  const form = event.target.form;
  if (event.target.matches("select") && form?.dataset.get) load(open, pathOf(form));
});
document.addEventListener("dialogd:entries", grow);
document.addEventListener("visibilitychange", look);
new ResizeObserver(look).observe(panels); // on a narrow screen they are out of sight until they are asked for

// What is no entry changes them too: an end, a pause, another dialog.
let before = "";
document.addEventListener("dialogd:state", ({ detail }) => {
  offerTasks(detail.build);
  const now = JSON.stringify([detail.dialog, detail.total, detail.outcome?.entry, detail.approved, detail.changed]);
  if (before && now !== before) grow();
  else look();
  before = now;
});
beginAway();
