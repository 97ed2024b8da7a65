// The head of the page: where the dialog stands, who does what, what is left, what the person is asked.
import { $, all, clock, make, put, say, show, stored, visible } from "./dom.js";
import { beckon, stillWriting } from "./entries.js";

const WORDS = { idle: "", thinking: "is writing", executing: "uses a tool", failed: "failed", absent: "is absent", stopped: "does not answer", unknown: "not known now" };
const AILING = new Set(["failed", "absent", "stopped"]);
const ACTS = { retry: "Retry", skip: "Skip", replace: "Use another model", leave: "Go on without" };
const BUSY = new Set(["thinking", "executing"]);
// What goes to the daemon. What is typed stays, and can be typed on.
const HAND = "#pause, #stop, #start, #floor, #pass, #agents .acts button, #say-send, #stop-form [type=submit], form[data-post] [type=submit]";
const cards = $("#agents");
const blank = $("#agent-card");
const title = document.title;

let state = null;
let notes = [];
let held = false;
const told = { question: "", acts: "[]", calls: "", outcome: "", dead: "", news: "" };

export const now = () => state;

// Who takes part: before the first state has come, those of the cards with which the page was sent.
export const cast = () =>
  state?.agents ?? all("#agents .agent").map((card) => ({ id: card.dataset.agent, name: $(".name", card).textContent }));

// A button that sends cannot be pressed while what it sent is under way, nor while the daemon is gone.
export function setBusy(button, yes) {
  button.toggleAttribute("data-busy", yes);
  able(button);
}
const able = (button) => (button.disabled = held || button.hasAttribute("data-busy"));

// In a shared dialog: who has no daemon here because they sit elsewhere, and who ought to have one.
function placed(facts) {
  const { shared } = facts;
  if (!shared) return facts;
  const agents = facts.agents.map((agent) => {
    if (shared.elsewhere.includes(agent.id)) return { ...agent, elsewhere: true, start: "", reason: agent.reason || "on another machine" };
    const isGone = agent.alive === null && agent.state === "idle" && shared.here.includes(agent.id);
    return isGone ? { ...agent, alive: false, state: "stopped", reason: `no daemon of it answers; start it in a terminal of its own: ${agent.start}` } : agent;
  });
  return { ...facts, agents, needed: shared.alarm && !facts.outcome ? `To go on: ${shared.fix}.` : facts.needed };
}

export function render(given, { isLost = false } = {}) {
  const isFirst = state === null;
  const facts = placed(given);
  state = { ...facts, received: performance.now() };
  document.body.dataset.phase = facts.phase;
  put($("#topic"), facts.topic || "No dialog yet");
  put($("#phase-words"), facts.problem || sentence(facts));
  $("#phase-light").dataset.phase = facts.phase;
  put($("#lifecycle"), facts.where);
  renderAgents(facts);
  renderLimits(facts);
  renderNotices(facts);
  renderBuild(facts);
  renderQuestion(facts, isFirst);
  renderCalls(facts);
  renderOutcome(facts, isFirst, isLost);
  renderControls(facts);
  renderTitle(facts, isFirst);
  renderWays(isLost);
  renderChoices(facts);
  tellOfTheDead(facts);
  held = isLost;
  for (const button of all(HAND)) able(button);
  // While the daemon is gone nobody is heard any more: what they were writing stands nowhere.
  if (isLost) stillWriting(new Set(), 0);
  else stillWriting(new Set(facts.agents.filter((agent) => BUSY.has(agent.state)).map((agent) => agent.id)));
  tick();
  if (!isLost) document.dispatchEvent(new CustomEvent("dialogd:state", { detail: facts }));
}

// What happens, and what is needed of whoever reads it.
const sentence = (facts) => `${facts.words} ${facts.needed || (facts.outcome || facts.phase === "error" ? "" : "Nothing is needed of you.")}`.trim();

// Home itself, once it is known to run: the way there outlives this page's daemon, which else leads there.
function renderWays(isLost) {
  for (const link of all("a[data-home]")) {
    const { home: place } = link.dataset;
    link.setAttribute("href", homeAt(place) || `/page/home${place && `?at=${encodeURIComponent(place.slice(1))}`}`);
    show(link, Boolean(homeAt()) || !isLost);
  }
}
export const homeAt = (place = "") => (state?.home ? `http://${location.hostname}:${state.home}/${place}` : "");

// The tab says whether its reader is needed; and so does the system, to who asked for that and looks elsewhere.
function renderTitle(facts, isFirst) {
  const badge = facts.needed ? "(!) " : facts.outcome ? "(done) " : "";
  document.title = `${badge}${visible(facts.topic || title)}`;
  const news = facts.needed || facts.outcome ? `${facts.words} ${facts.questions[0]?.text || facts.needed}` : "";
  if (news && news !== told.news && !isFirst) tellAway(facts, news);
  told.news = news;
}

function tellAway(facts, words) {
  if (!isTold() || (!document.hidden && document.hasFocus())) return;
  try {
    // The tag: however many tabs show this dialog, one notification of it stands there.
    const shown = new Notification(visible(facts.topic || title), { body: visible(words), tag: `dialogd ${facts.dialog}`, icon: "/page/icon.svg" });
    shown.addEventListener("click", () => window.focus());
  } catch {
    // A phone's browser, which shows none of a page.
  }
}

export const isTold = () => stored(localStorage, "dialogd:notify") === "on" && "Notification" in window && Notification.permission === "granted";

// Gives why there will be no notifications; "" where they were switched as wanted.
export async function tellMe(yes) {
  stored(localStorage, "dialogd:notify", yes ? "on" : "");
  if (!yes) return "";
  if (!("Notification" in window)) return "This browser shows no notifications.";
  const answer = await Notification.requestPermission();
  return answer === "granted" ? "" : "The browser does not allow this page notifications; its settings for this address say so.";
}

// The dialog was stopped, and its daemons are gone before they can be asked about it.
export function renderStopped(reason) {
  if (!state || state.outcome) return;
  const outcome = { kind: "stopped", is_agreed: false, words: "The dialog was stopped.", reason, entry: "" };
  const agents = state.agents.map((agent) => ({ ...agent, state: "idle", since: null, reason: "", owes: false, failed: false }));
  render({ ...state, outcome, agents, phase: "ended", words: outcome.words, needed: "", start: "", where: "", allowed: [], questions: [], calls: [] }, { isLost: true });
}

// The daemon of this page is gone, and with it the word of the others: what stands here is what was known, and nothing
// can be done. How the dialog ended stays true.
export function renderLost(words) {
  if (!state) return put($("#phase-words"), words);
  if (state.outcome) return render(state, { isLost: true });
  const gone = (agent) => ({ state: "stopped", alive: false, reason: `its daemon does not answer; start it again: ${agent.start}` });
  const agents = state.agents.map((agent) => ({ ...agent, since: null, ...(agent.own ? gone(agent) : { state: "unknown", reason: "" }) }));
  return render({ ...state, agents, words, needed: "", start: "", phase: "error", problem: "" }, { isLost: true });
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
}

function renderCard(card, agent, facts) {
  card.className = `agent agent-${agent.seat % 10}${AILING.has(agent.state) && !facts.outcome ? " ails" : ""}`;
  card.dataset.state = agent.state;
  card.toggleAttribute("data-owes", agent.owes);
  put($(".name", card), agent.name);
  put($(".word", card), agent.doing ? agent.doing : agent.owes && agent.state === "idle" && !facts.outcome && (!agent.reason || agent.elsewhere) ? "is next" : facts.outcome && AILING.has(agent.state) ? "" : WORDS[agent.state] ?? agent.state);
  put($(".why", card), facts.outcome ? "" : agent.reason); // after the end nobody has to come back
  card.title = visible([agent.id === agent.name ? "" : `@${agent.id}`, spentBy(agent)].filter(Boolean).join(" · "));
  // Not beside those who have answered in a round, or have not begun to, while another one writes.
  const isOpen = !facts.outcome && !facts.start && (AILING.has(agent.state) || BUSY.has(agent.state) || !facts.agents.some((one) => BUSY.has(one.state)));
  const isGone = agent.failed || agent.state === "absent";
  for (const [act, text] of Object.entries(ACTS)) {
    let button = $(`[data-do="${act}"]`, card);
    if (!button) $(".acts", card).append((button = make("button", { type: "button", class: "quiet small", "data-do": act, text })));
    const yes = act === "retry" ? agent.owes || isGone : act === "skip" ? agent.owes && (!isGone || facts.build) : isGone && !facts.build;
    button.setAttribute("aria-label", visible(`${text}: ${agent.name}`));
    show(button, isOpen && yes && facts.allowed.includes(act === "replace" ? "invite" : act));
  }
}

// The model behind an agent, and what it has cost.
function spentBy(agent) {
  const model = [agent.backend, agent.model === agent.backend ? "" : agent.model].filter(Boolean).join(" ");
  return [model, agent.cost, agent.tokens ? `${agent.tokens.toLocaleString()} tokens` : ""].filter(Boolean).join(" · ");
}

// Lists from which agents and proposals are chosen: nobody has to know their ids.
function renderChoices(facts) {
  offer("select[data-agents]", facts.agents.map((agent) => [agent.id, agent.name === agent.id ? agent.id : `${agent.name} (${agent.id})`]));
  offer("select[data-proposals]", facts.proposals.map(({ ref, words }) => [ref, `${ref}: ${words}`]));
}

function offer(selector, choices) {
  const key = JSON.stringify(choices);
  for (const select of all(selector)) {
    if (select.dataset.key === key) continue;
    const chosen = select.value;
    const none = select.dataset.none ? [make("option", { value: "", text: select.dataset.none })] : [];
    select.replaceChildren(...none, ...choices.map(([value, text]) => make("option", { value, text })));
    select.value = choices.some(([value]) => value === chosen) ? chosen : (select.options[0]?.value ?? "");
    select.dataset.key = key;
  }
}

function renderLimits(facts) {
  const list = $("#limits");
  const left = facts.left.filter((one) => one.name !== "size" || one.part < 0.5); // a file has room, mostly
  const key = JSON.stringify(left);
  if (list.dataset.key !== key) {
    list.dataset.key = key;
    list.replaceChildren(
      ...left.map((one) => {
        const bar = make("meter", { min: 0, max: 1, low: 0.15, high: 0.4, optimum: 1, value: one.part.toFixed(3), "aria-label": `${one.name} left` });
        return make("li", { "data-limit": one.name }, make("span", { text: one.words }), bar);
      }),
    );
  }
  const totals = [facts.cost, facts.tokens ? `${facts.tokens.toLocaleString()} tokens` : ""].filter(Boolean);
  put($("#totals"), totals.length ? `Spent so far: ${totals.join(", ")}` : "");
  const spending = facts.agents.map((agent) => [agent.seat, agent.name, spentBy(agent)]);
  if ($("#spending").dataset.key === JSON.stringify(spending)) return;
  $("#spending").dataset.key = JSON.stringify(spending);
  $("#spending").replaceChildren(...spending.map(([seat, name, text]) => make("li", { class: `agent-${seat % 10}` }, make("span", { class: "name", text: name }), ` ${visible(text)}`)));
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

// What a build waits for: the answers as buttons; its words stand at the top, and its own question is not asked twice.
function renderBuild(facts) {
  show($("#build-asks"), facts.acts.length > 0);
  const key = JSON.stringify(facts.acts);
  if (key === told.acts) return;
  told.acts = key;
  $("#build-acts").replaceChildren(...facts.acts.map((act, at) =>
    make("form", { "data-post": act.path, "data-ok": act.done, "aria-label": `Answer: ${act.label}` },
      ...Object.entries(act.body).map(([name, value]) => make("input", { type: "hidden", name, value })),
      make("button", { type: "submit", class: at ? "" : "primary", text: act.label }),
      make("p", { class: "result", role: "status" }))));
  if (facts.acts.length && told.acts) say(`${facts.words} ${facts.needed}`);
}

function renderQuestion(facts, isFirst) {
  const asked = facts.acts.length ? [] : facts.questions;
  show($("#question"), asked.length > 0);
  const key = JSON.stringify(asked.map((one) => [one.asker, one.text, one.default]));
  if (key === told.question) return;
  told.question = key;
  const names = [...new Set(asked.map((one) => one.name))].join(" and ");
  put($("#question-title"), asked.length ? `${names || "The dialog"} ${asked.length > 1 && names.includes(" and ") ? "ask" : "asks"} you` : "");
  $("#question-text").replaceChildren(...asked.map((one) => {
    const take = one.default ? [" ", make("button", { type: "button", class: "small", "data-do": "default", "data-text": one.default, text: `Use “${one.default.length > 40 ? `${one.default.slice(0, 40)}…` : one.default}”` })] : [];
    return make("li", { text: one.text || "See above." }, ...take);
  }));
  if (isFirst || !asked.length) return;
  say(`${names || "The dialog"} asks you: ${asked.map((one) => one.text).join(" / ")}`);
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

const ahead = (seconds) => (seconds > 5400 ? `in ${Math.round(seconds / 3600)} hours` : seconds > 120 ? `in ${Math.round(seconds / 60)} minutes` : `in ${clock(seconds)}`);

// Until when an answer is waited for, and what counts without one.
function terms(asked) {
  const parts = [];
  const by = asked.by ? new Date(asked.by) : null;
  if (by && !Number.isNaN(by.getTime())) {
    const left = (by.getTime() - Date.now()) / 1000;
    const until = by.toLocaleString([], { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" });
    parts.push(left > 0 ? `Please answer by ${until} (${ahead(left)}).` : `The time to answer was up at ${until}.`);
  }
  if (asked.default && asked.takes_default) parts.push(`Without an answer, this counts: ${asked.default}`);
  return parts.join(" ");
}

// The card of the end is end.js's own.
function renderOutcome(facts, isFirst, isLost) {
  const ended = facts.outcome;
  const key = ended ? `${ended.kind} ${ended.entry}` : "";
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
  show($("#floor-act"), isFree);
  const isMine = facts.turn_of.includes("USER") && !facts.questions.length && !facts.outcome;
  show($("#pass"), isMine || (facts.step && facts.turn_of.includes("USER")));
  show($("#start"), Boolean(facts.start));
  put($("#start"), facts.start || "Start");
  const step = $("#step-act");
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
    put($(".clock", card), agent.since == null ? "" : clock(agent.since + passed));
  }
  put($("#question-terms"), [...new Set(state.questions.map(terms))].filter(Boolean).join("\n"));
}

setInterval(tick, 1000);
