// The head of the page: where the dialog stands, who does what, what is left, what the person is asked.
import { $, all, clock, make, put, say, show, visible } from "./dom.js";
import { beckon, setPlayers, stillWriting } from "./entries.js";

const WORDS = { idle: "waits", thinking: "is thinking", executing: "is at work", failed: "failed", absent: "is absent", stopped: "does not answer", unstarted: "is not started yet", unknown: "not known now" };
const BUSY = new Set(["thinking", "executing"]);
// What goes to the daemon. What is typed stays, and can be typed on.
const HAND = "#pause, #stop, #floor, #pass, #agents .acts button, #say-send, #stop-form [type=submit], form[data-post] [type=submit]";
const cards = $("#agents");
const blank = $("#agent-card");
const title = document.title;

let state = null;
let notes = [];
let held = false;
const told = { question: "", calls: "", outcome: "", dead: "" };

export const now = () => state;

// A button that sends cannot be pressed while what it sent is under way, nor while the daemon is gone.
export function setBusy(button, yes) {
  button.toggleAttribute("data-busy", yes);
  able(button);
}
const able = (button) => (button.disabled = held || button.hasAttribute("data-busy"));

export function render(facts, { isLost = false } = {}) {
  const isFirst = state === null;
  state = { ...facts, received: performance.now() };
  document.body.dataset.phase = facts.phase;
  put($("#topic"), facts.topic || "No dialog yet");
  put($("#phase-words"), facts.problem || facts.words);
  $("#phase-light").dataset.phase = facts.phase;
  put($("#lifecycle"), facts.lifecycle_words);
  setPlayers(facts.agents);
  renderAgents(facts);
  renderLimits(facts);
  renderNotices(facts);
  renderQuestion(facts, isFirst);
  renderCalls(facts);
  renderOutcome(facts, isFirst, isLost);
  renderControls(facts);
  tellOfTheDead(facts);
  held = isLost;
  for (const button of all(HAND)) able(button);
  // While the daemon is gone nobody is heard any more: what they were writing stands nowhere.
  if (isLost) stillWriting(new Set(), 0);
  else stillWriting(new Set(facts.agents.filter((agent) => BUSY.has(agent.state)).map((agent) => agent.id)));
  tick();
  if (!isLost) document.dispatchEvent(new CustomEvent("dialogd:state", { detail: facts }));
}

// The dialog was stopped, and its daemons are gone before they can be asked about it.
export function renderStopped(reason) {
  if (!state || state.outcome) return;
  const outcome = { name: "STOPPED", words: "The dialog was stopped.", reason, by: "", entry: "", failed: false, signers: [] };
  const agents = state.agents.map((agent) => ({ ...agent, state: "idle", since: null, reason: "", owes: false, failed: false }));
  render({ ...state, outcome, agents, phase: "ended", words: outcome.words, lifecycle_words: "", allowed: [], question: null, questions: [], calls: [] }, { isLost: true });
}

// The daemon of this page is gone, and with it the word of the others: what stands here is what was known, and nothing
// can be done. How the dialog ended stays true.
export function renderLost(words) {
  if (!state) return put($("#phase-words"), words);
  if (state.outcome) return render(state, { isLost: true });
  const gone = (agent) => ({ state: "stopped", alive: false, reason: `its daemon does not answer; start it again: ${agent.start}` });
  const agents = state.agents.map((agent) => ({ ...agent, since: null, ...(agent.own ? gone(agent) : { state: "unknown", reason: "" }) }));
  return render({ ...state, agents, words, phase: "error", problem: "" }, { isLost: true });
}

// What an `agent` event says, before the whole state is fetched again.
export function renderAgent(event) {
  const agent = state?.agents.find((one) => one.id === event.agent);
  if (!agent || !WORDS[event.state]) return;
  const isBusy = BUSY.has(event.state);
  Object.assign(agent, { state: event.state, reason: isBusy ? "" : event.reason || agent.reason });
  Object.assign(agent, { turn: event.turn ?? null, since: isBusy ? (event.seconds ?? 0) : null });
  agent.received = performance.now();
  renderAgents(state);
  tick();
}

function renderAgents(facts) {
  const here = new Set(facts.agents.map((agent) => agent.id));
  for (const card of [...cards.children]) if (!here.has(card.dataset.agent)) card.remove();
  for (const agent of facts.agents) {
    let card = [...cards.children].find((one) => one.dataset.agent === agent.id);
    if (!card) {
      card = blank.content.firstElementChild.cloneNode(true);
      card.dataset.agent = agent.id;
      cards.append(card);
    }
    renderCard(card, agent, facts);
  }
  renderChoices(facts.agents);
}

function renderCard(card, agent, facts) {
  card.className = `agent agent-${agent.seat % 10}`;
  card.dataset.state = agent.state;
  card.toggleAttribute("data-owes", agent.owes);
  put($(".name", card), agent.name);
  put($(".id", card), agent.id);
  const word = agent.owes && agent.state === "idle" ? "is next" : WORDS[agent.state] || agent.state;
  // `waits`, and `waiting for B`, would say it twice.
  put($(".word", card), word === "waits" && (agent.reason || facts.outcome) ? "" : word);
  put($(".why", card), agent.reason);
  $(".why", card).title = visible(agent.reason);
  const model = [agent.backend, agent.model === agent.backend ? "" : agent.model].filter(Boolean).join(" ");
  put($(".spent", card), [model, agent.cost, agent.tokens ? `${agent.tokens.toLocaleString()} tokens` : ""].filter(Boolean).join(" · "));
  const isOpen = !facts.outcome;
  for (const [act, yes] of [["retry", isOpen && (agent.owes || agent.failed || agent.state === "absent")], ["skip", isOpen && (agent.owes || agent.failed)]]) {
    const button = $(`[data-do="${act}"]`, card);
    button.setAttribute("aria-label", visible(`${act === "retry" ? "Retry" : "Skip"} ${agent.name}`));
    show(button, yes && facts.allowed.includes(act));
  }
}

// Fields that choose an agent, and the buttons that put its name before what is said.
function renderChoices(agents) {
  const key = agents.map((agent) => `${agent.id} ${agent.name} ${agent.seat}`).join("\n");
  const mentions = $("#mentions");
  if (mentions.dataset.key === key) return;
  mentions.dataset.key = key;
  mentions.replaceChildren(
    ...agents.map((agent) =>
      make("button", { type: "button", class: `mention agent-${agent.seat % 10}`, "data-do": "mention", "data-agent": agent.id, "aria-pressed": "false", "aria-label": `Pass the turn to ${agent.name}`, text: `@${agent.id}`, title: agent.name }),
    ),
  );
  for (const select of all("select[data-agents]")) {
    const chosen = select.value;
    select.replaceChildren(...agents.map((agent) => make("option", { value: agent.id, text: agent.name === agent.id ? agent.id : `${agent.name} (${agent.id})` })));
    if (chosen) select.value = chosen;
  }
}

function renderLimits(facts) {
  const list = $("#limits");
  const key = JSON.stringify(facts.left);
  if (list.dataset.key !== key) {
    list.dataset.key = key;
    list.replaceChildren(
      ...facts.left.map((one) => {
        const bar = make("meter", { min: 0, max: 1, low: 0.15, high: 0.4, optimum: 1, value: one.part.toFixed(3), "aria-label": `${one.name} left` });
        return make("li", { "data-limit": one.name }, make("span", { text: one.words }), bar);
      }),
    );
  }
  const totals = [facts.cost, facts.tokens ? `${facts.tokens.toLocaleString()} tokens` : ""].filter(Boolean);
  put($("#totals"), totals.length ? `Spent so far: ${totals.join(", ")}` : "");
}

// -- notices -----------------------------------------------------------------------------------------------------

export function notice(text) {
  if (!text || notes.includes(text)) return;
  notes = [...notes.slice(-9), text];
  if (state) renderNotices(state);
}

function renderNotices(facts) {
  const lines = [...new Set([...facts.signals.map((one) => one.text), ...facts.warnings, ...notes])];
  const list = $("#notices-list");
  const key = lines.join("\n");
  show($("#notices"), lines.length > 0);
  if (list.dataset.key === key) return;
  list.dataset.key = key;
  put($("#notices-count"), `(${lines.length})`);
  list.replaceChildren(...lines.map((text) => make("li", { text })));
}

// -- what the person is asked ------------------------------------------------------------------------------------

function renderQuestion(facts, isFirst) {
  const asked = facts.questions;
  show($("#question"), asked.length > 0);
  const needs = asked.length > 0 || facts.phase === "waiting_for_user";
  document.title = `${needs ? "(?) " : facts.outcome ? "(done) " : ""}${visible(facts.topic || title)}`;
  const key = asked.map((one) => `${one.asker}: ${one.text}`).join("\n");
  if (key === told.question) return;
  told.question = key;
  const names = [...new Set(asked.map((one) => one.name))].join(" and ");
  put($("#question-title"), asked.length ? `${names || "The dialog"} ${asked.length > 1 && names.includes(" and ") ? "ask" : "asks"} you` : "");
  $("#question-text").replaceChildren(...asked.map((one) => make("li", { text: one.text || "See above." })));
  if (isFirst || !asked.length) return;
  say(`${names} asks you: ${asked.map((one) => one.text).join(" / ")}`);
  beckon("A question for you");
}

// The calls of tools that wait for a yes or a no.
function renderCalls(facts) {
  const asked = facts.calls;
  show($("#calls"), asked.length > 0);
  const key = asked.map((one) => one.call).join(" ");
  if (key === told.calls) return;
  told.calls = key;
  $("#calls-list").replaceChildren(...asked.map((one) => {
    const row = $("#call-row").content.cloneNode(true).firstElementChild;
    put($(".call-words", row), `${one.name} wants to call ${one.tool}`);
    put($(".call-arguments", row), one.arguments);
    for (const field of all("[name=call]", row)) field.value = one.call;
    return row;
  }));
  if (!asked.length) return;
  say(`${asked[0].name} wants to call a tool`);
  beckon("A tool to approve");
}

// Until when an answer is waited for, and what counts without one.
function terms(asked) {
  const parts = [];
  const by = asked.by ? new Date(asked.by) : null;
  if (by && !Number.isNaN(by.getTime())) {
    const left = (by.getTime() - Date.now()) / 1000;
    const until = by.toLocaleString([], { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" });
    parts.push(left > 0 ? `Please answer by ${until} (in ${clock(left)}).` : `The time to answer was up at ${until}.`);
  }
  if (asked.default) parts.push(asked.takes_default ? `Without an answer, this counts: ${asked.default}` : `Suggested answer: ${asked.default}`);
  return parts.join(" ");
}

// The card of the end is end.js's own.
function renderOutcome(facts, isFirst, isLost) {
  const ended = facts.outcome;
  const key = ended ? `${ended.name} ${ended.entry}` : "";
  if (key && key !== told.outcome && !isFirst) say(`The dialog has ended. ${ended.words}`);
  told.outcome = key;
  document.dispatchEvent(new CustomEvent("dialogd:end", { detail: { ended, approved: facts.approved, total: facts.total, dialog: facts.dialog, isLost } }));
}

function renderControls(facts) {
  const pause = $("#pause");
  put(pause, facts.paused ? "Resume" : "Pause");
  pause.dataset.do = facts.paused ? "resume" : "pause";
  show(pause, facts.allowed.includes("pause") || facts.allowed.includes("resume"));
  show($("#stop"), !facts.outcome || facts.allowed.includes("stop"));
  const isFree = facts.allowed.includes("floor");
  show($("#floor"), isFree);
  show($("#floor-form"), isFree);
  const isMine = facts.turn_of.includes("USER") && !facts.questions.length && !facts.outcome;
  show($("#pass"), isMine || (facts.step && facts.turn_of.includes("USER")));
  const step = $("#step-form");
  $("[name=on]", step).value = String(!facts.step);
  put($("button", step), facts.step ? "Switch off" : "Switch on");
}

function tellOfTheDead(facts) {
  const dead = facts.agents.filter((agent) => agent.alive === false && !facts.outcome).map((agent) => agent.name);
  const key = dead.join(", ");
  if (key && key !== told.dead) say(`${key}: the daemon does not answer.`);
  told.dead = key;
}

// -- the clocks --------------------------------------------------------------------------------------------------

function tick() {
  if (!state) return;
  for (const agent of state.agents) {
    const card = [...cards.children].find((one) => one.dataset.agent === agent.id);
    if (!card) continue;
    const passed = (performance.now() - (agent.received ?? state.received)) / 1000;
    put($(".clock", card), agent.since == null ? "" : `since ${clock(agent.since + passed)}`);
  }
  put($("#question-terms"), [...new Set(state.questions.map(terms))].filter(Boolean).join("\n"));
}

setInterval(tick, 1000);
