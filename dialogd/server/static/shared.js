// How the mirror of a shared dialog stands: who sits where, how far behind it is, what is wrong. It counts on by itself.
import { $, make, put, say, show, timeOfDay, visible } from "./dom.js";

const box = $("#shared");
let known = null; // how it stands, who is called what, and when that came
let told = "";

const ago = (seconds) => (seconds < 90 ? `${Math.round(seconds)} s` : seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`);
const sit = (names, where) => (names.length ? `${names.join(", ")} ${names.length === 1 ? "sits" : "sit"} ${where}.` : "");

function state({ shared }, passed) {
  if (shared.alarm) return `${shared.problem}. To go on: ${shared.fix}.`;
  const since = shared.asked === null ? "so far" : `since ${timeOfDay(new Date(Date.now() - (shared.asked + passed) * 1000))}`;
  if (shared.problem) return `No answer from ${shared.log} ${since}: what is here may not be all. ${shared.problem}; ${shared.fix}.`;
  return shared.asked === null ? `${shared.log} is being asked.` : `The whole log as of ${ago(shared.asked + passed)} ago.`;
}

function draw() {
  if (!known) return;
  const passed = (performance.now() - known.received) / 1000;
  put($("#shared-state"), state(known, passed));
  put($("#shared-came"), `Nothing new for ${ago(known.shared.came + passed)}.`);
}

document.addEventListener("dialogd:state", ({ detail }) => {
  const { shared } = detail;
  show(box, Boolean(shared));
  known = shared && { shared, received: performance.now() };
  if (!shared) return;
  const called = (ids) => ids.map((id) => detail.agents.find((agent) => agent.id === id)?.name ?? id);
  box.dataset.stands = shared.alarm || shared.problem ? "bad" : "well";
  put($("#shared-seats"), [sit(called(shared.here), "here"), sit(called(shared.elsewhere), "elsewhere"), `People: ${shared.people.join(", ")}.`].filter(Boolean).join(" "));
  put($("#shared-log"), `${shared.log}, ${shared.name}`);
  put($("#shared-words"), shared.words);
  // What was typed into the file: the command that sends it stands behind the last colon and blank.
  const at = shared.typed.lastIndexOf(": dialogd ") + 2;
  const typed = `W${shared.typed.slice(1)}`;
  show($("#shared-typed"), Boolean(shared.typed));
  if ($("#shared-typed").textContent !== typed) $("#shared-typed").replaceChildren(visible(typed.slice(0, at)), make("code", { text: typed.slice(at) }));
  draw();
  const news = [shared.alarm ? state(known, 0) : shared.problem && "No answer from the log of this dialog.", shared.typed].filter(Boolean).join(" ");
  if (news && news !== told) say(news);
  told = news;
});

setInterval(draw, 1000);
