// Home: what runs, what waits for the person, what was; and the form that starts a dialog. Text is put in as text.

import { $, all, ask, make, put, read, refusal, say, show, soon, stored, visible } from "/page/dom.js";

const KEPT = "dialogd:home"; // the form as it was left; this tab only, for another program may have this port one day
const LOOK = 3_000; // milliseconds between two looks at what runs
const FIELDS = ["question", "project", "budget", "max_turns", "timeout", "max_time", "engine"];
const SLOW = 6.5; // seconds of each reply of a rehearsal: it is read, and interrupted
const EXAMPLE = "Where should user sessions live: Redis or Postgres?";
const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";

let choices = { backends: [], templates: [], sessions: [], projects: [], defaults: {} };
let seats = []; // { backend, session, model, project }
let contextProblem = ""; // what was said about a file, until files are looked at again
let context = []; // the files that go along, as the server shows them

const field = (name) => document.getElementById(name);
const backend = (id) => choices.backends.find((one) => one.id === id);
const session = (key) => choices.sessions.find((one) => one.key === key);
const words = (...parts) => parts.filter(Boolean).join(" · ");
const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
const plural = (count, one, many = `${one}s`) => `${count} ${count === 1 ? one : many}`;
const titled = (name) => capital(name.replaceAll("-", " "));
const titleOf = (seat) => (seat.elsewhere ? "Somebody else" : seat.session ? session(seat.session)?.name : "") || backend(seat.backend)?.title || seat.backend;

// -- What was chosen, and what the form says of it --------------------------------------------------------------------

function chosenTemplate() {
  return $("#templates input:checked")?.value ?? "";
}

function wanted() {
  const text = (name) => field(name).value.trim();
  return {
    question: text("question"),
    template: chosenTemplate(),
    agents: seats.map(({ elsewhere, ...seat }) => seat),
    budget: text("budget"),
    max_turns: Number(text("max_turns")) || null,
    timeout: text("timeout"),
    max_time: text("max_time"),
    context: context.map((one) => one.path),
    project: text("project"),
    unattended: field("unattended").checked,
  };
}

let kept = {}; // the form as it was left, until what can be chosen here is known
let isKnown = false;

function keep() {
  const { agents, template, context } = isKnown ? wanted() : kept;
  stored(sessionStorage, KEPT, JSON.stringify({ ...wanted(), agents: isKnown ? seats : agents, template, context, engine: field("engine").value }));
}

function restoreText() {
  try {
    kept = JSON.parse(stored(sessionStorage, KEPT) || "{}");
  } catch {
    // Not ours: the form begins empty.
  }
  for (const name of FIELDS) field(name).value = kept[name] ?? "";
  field("unattended").checked = Boolean(kept.unattended);
}

function restoreChoices() {
  isKnown = true;
  const template = all("#templates input").find((one) => one.value === kept.template);
  if (template) template.checked = true;
  const known = (kept.agents ?? []).filter((one) => one.elsewhere || (one.session ? session(one.session) : backend(one.backend)?.ready));
  seats = kept.agents ? known : usual();
  if (kept.context?.length) attach(kept.context);
}

// Nobody here can answer: all that can be begun is a rehearsal.
const isBare = () => isKnown && !cards().some((one) => one.ready) && !choices.sessions.some((one) => !one.seat);

// Who would be seated in a terminal too, where nobody is named.
const usual = () => choices.defaults.agents.filter((id) => cards().some((one) => one.id === id && one.ready)).map((id) => ({ backend: id, model: "", project: "", session: "" }));

// A rehearsal has a button of its own, and an open session a card of its own.
const cards = () => choices.backends.filter((one) => !["rehearsal", "live"].includes(one.id));

// -- The cast -----------------------------------------------------------------------------------------------------------

function card(one, seat) {
  const isHere = (each) => !each.elsewhere && (seat.session ? each.session === seat.session : !each.session && each.backend === seat.backend);
  const at = seats.flatMap((each, index) => (isHere(each) ? [index] : []));
  const facts = !one.ready ? [
    make("span", { class: "why", text: one.why_not }),
    one.fix && make(one.fix.startsWith("npm ") ? "code" : "span", { class: "why", text: one.fix }),
  ] : [
    one.answers && one.answers !== one.title && make("span", { class: "answers", text: one.answers }),
    one.pays && make("span", { class: "fact", text: one.pays }),
    one.sees && make("span", { class: "fact", text: one.sees }),
  ];
  const head = make("span", { class: "card-head" }, make("b", { text: one.title }), ...at.map((index) => avatar(index)));
  if (!one.ready) return make("li", {}, make("div", { class: "card" }, head, ...facts.filter(Boolean)));
  const button = make(
    "button",
    { type: "button", class: at.length ? `card agent-${at[0] % 10}` : "card", "data-do": "seat", "data-backend": seat.backend, "data-session": seat.session, "aria-pressed": String(at.length > 0) },
    head,
    ...facts.filter(Boolean),
  );
  return make("li", {}, button);
}

const avatar = (index) => make("span", { class: `avatar agent-${index % 10}`, text: LETTERS[index] ?? "…" });

function drawCast() {
  const focused = document.activeElement?.closest("[data-do=seat]")?.dataset;
  const isReady = (one) => one.ready;
  const [ready, not] = [cards().filter(isReady), cards().filter((one) => !one.ready)];
  $("#cards").replaceChildren(...ready.map((one) => card(one, { backend: one.id, session: "" })));
  $("#sessions .cards").replaceChildren(...choices.sessions.map((one) => card(
    { title: one.name || one.program, answers: words(one.program, one.idle ? "rests" : "is at work"), pays: "", sees: one.project, ready: !one.seat, why_not: one.seat && `has the seat ${one.seat} already` },
    { backend: "", session: one.key },
  )));
  show($("#sessions"), choices.sessions.length > 0);
  put($("#sessions summary"), `Ask a session that you have open (${choices.sessions.length})`);
  $("#missing .cards").replaceChildren(...not.map((one) => card(one, { backend: one.id, session: "" })));
  show($("#missing"), not.length > 0);
  put($("#missing summary"), ready.length ? `${plural(not.length, "other")} could answer, and what each needs` : "No model can answer on this computer yet: what each needs");
  show($(".go"), !isBare());
  show($("#cast legend"), !isBare());
  field("rehearse-go").classList.toggle("primary", isBare());
  field("join-agent").replaceChildren(...ready.map((one) => make("option", { value: one.id, text: one.title })));
  arrange();
  if (focused) all("[data-do=seat]").find((one) => one.dataset.backend === focused.backend && one.dataset.session === focused.session)?.focus();
  drawSeats();
}

function drawSeats() {
  const names = choices.templates.find((one) => one.name === chosenTemplate())?.cast ?? [];
  const rows = seats.map((seat, index) => {
    const { models = [] } = backend(seat.backend) ?? {};
    const model = make("input", { class: "model", "data-model": String(index), list: `models-${index}`, placeholder: models[0] || "usual model", spellcheck: "false", "aria-label": `Model of ${LETTERS[index]}, ${titleOf(seat)}`, "aria-describedby": "agents-problem" });
    model.value = seat.model;
    const known = make("datalist", { id: `models-${index}` }, ...models.map((value) => make("option", { value })));
    const act = (name, text, label) => make("button", { type: "button", class: "quiet small", "data-do": name, "data-index": String(index), text, "aria-label": `${label} ${LETTERS[index]}, ${titleOf(seat)}` });
    return make(
      "li",
      { class: `seat agent-${index % 10}` },
      avatar(index),
      make("span", {}, make("span", { class: "seat-name", text: titleOf(seat) }), " ", make("span", { class: "hint", text: words(names[index] || (index ? "" : "speaks first"), seat.elsewhere && "on another computer") })),
      make("span", { class: "seat-model" }, ...(seat.session || seat.elsewhere ? [] : [model, known])),
      make("span", { class: "seat-acts" }, index ? act("up", "Move up", "Move up") : "", seat.session || seat.elsewhere ? "" : act("again", "One more", "One more like"), act("unseat", "Remove", "Remove")),
    );
  });
  $("#seats").replaceChildren(...rows);
  const own = seats.map((seat, index) => [seat, index]).filter(([seat]) => !seat.session && !seat.elsewhere);
  field("with").checked = isShared();
  show($("#share"), isShared());
  drawLeaves();
  $("#own-projects").replaceChildren(...(own.length > 1 ? own : []).map(([seat, index]) => {
    const id = `project-${index}`;
    const input = make("input", { id, list: "projects", spellcheck: "false", placeholder: "the same", "data-seat": String(index), "aria-describedby": `agents.${index}.project-problem` });
    input.value = seat.project;
    return make("div", { class: "field", "data-field": `agents.${index}.project` },
      make("label", { for: id, text: `Another folder for ${LETTERS[index]}, ${titleOf(seat)}` }),
      input,
      make("p", { class: "problem", id: `agents.${index}.project-problem` }));
  }));
  drawFolds();
}

function seatOrNot({ backend, session }) {
  const before = seats.length;
  seats = seats.filter((one) => one.elsewhere || one.backend !== backend || one.session !== session);
  if (seats.length === before) seats.push({ backend, session, model: "", project: "" });
  drawCast();
  say(seats.map((one, index) => `${LETTERS[index]} is ${titleOf(one)}`).join(", ") || "Nobody takes part yet");
}

// After a button beside a seat: the focus is at the same one of the seat that it concerned.
function reseated(name, index) {
  drawCast();
  changed();
  const row = $(`#seats > li:nth-child(${Math.max(index, 0) + 1})`);
  ($(`[data-do=${name}]`, row ?? undefined) ?? $("#seats button") ?? $("#cards button"))?.focus();
}

// Where the template is for another number of agents: that, and the nearest number that fits.
function misfit() {
  const template = choices.templates.find((one) => one.name === chosenTemplate());
  const [fewest, most] = [template?.least ?? 1, template?.most || Infinity];
  const count = Math.min(Math.max(seats.length, fewest), most);
  if (!seats.length || count === seats.length) return null;
  const need = fewest === most ? `exactly ${fewest}` : seats.length < fewest ? `at least ${fewest}` : `at most ${most}`;
  return { count, words: `“${titled(template.name)}” is for ${need}, and ${seats.length === 1 ? "one takes" : `${seats.length} take`} part so far` };
}

// -- What is folded, in a few words -------------------------------------------------------------------------------------

function drawFolds() {
  const template = choices.templates.find((one) => one.name === chosenTemplate());
  put($("#template-now"), template ? `${titled(template.name)}. ${template.sentence}` : "");
  const turns = String(template?.turns || choices.defaults.turns || "");
  field("max_turns").dataset.usual = field("max_turns").placeholder = turns;
  const wrong = misfit();
  show($("#cast-fit"), Boolean(wrong));
  put($("#cast-fit span"), wrong?.words);
  put($("#cast-fit button"), `Make it ${wrong?.count}`);
  $("#cast-fit button").dataset.count = wrong?.count;
  const folder = field("project").value.trim().split("/").filter(Boolean).pop();
  put($("#project-now"), words(folder, context.length ? plural(context.length, "file") : "") || "none");
  const value = (name) => field(name).value.trim() || field(name).dataset.usual || "";
  put($("#limits-now"), words(
    value("max_turns") && `${value("max_turns")} turns`,
    value("timeout") && `${value("timeout")} a reply`,
    value("max_time") && `${value("max_time")} in all`,
    value("budget") && `at most ${value("budget")}`,
    field("unattended").checked && "without you",
  ));
}

function drawChoices() {
  const option = (one) => make("label", { class: "option" },
    make("input", { type: "radio", name: "template", value: one.name, "aria-describedby": "template-problem" }),
    make("span", {}, make("b", { text: titled(one.name) }), make("span", { class: "hint", text: words(cast(one), one.turns && `${one.turns} turns`) }), make("span", { class: "sentence", text: one.sentence })));
  const isUsual = (one) => one.name === choices.defaults.template;
  $("#templates").replaceChildren(...[...choices.templates].sort((a, b) => isUsual(b) - isUsual(a)).map(option));
  const first = $("#templates input");
  if (first) first.checked = true;
  $("#projects").replaceChildren(...choices.projects.map((path) => make("option", { value: path })));
  const { timeout, budget } = choices.defaults;
  for (const [name, usually] of [["timeout", timeout], ["budget", budget]]) {
    field(name).dataset.usual = usually ?? "";
    field(name).placeholder = visible(usually || "no limit");
  }
}

const cast = ({ least, most }) => (most === least ? plural(least, "agent") : most ? `${least} to ${most} agents` : `${least} or more agents`);

// Text in which commands and examples stand between backticks.
function phrase(element, text) {
  element.replaceChildren(...String(text ?? "").split("`").map((part, index) => (index % 2 ? make("code", { text: part }) : visible(part))));
}

// -- Problems stand at their field --------------------------------------------------------------------------------------

function problem(name, text) {
  const box = all("[data-field]").find((one) => one.dataset.field === name) ?? $('[data-field="start"]');
  const place = $(":scope > .problem", box) ?? $("#start-problem");
  phrase(place, text);
  for (const input of all("input, textarea, select", box).filter((one) => one.getAttribute("aria-describedby")?.includes(place.id))) {
    if (text) input.setAttribute("aria-invalid", "true");
    else input.removeAttribute("aria-invalid");
  }
  return box;
}

function clear() {
  for (const box of all("[data-field]")) problem(box.dataset.field, "");
  phrase($("#rehearse-problem"), "");
  problem("context", contextProblem);
}

// The answer of a refused request, at the field that it names, which is unfolded and, when it was sent, focused.
function refused(facts, isSent) {
  const name = facts.field ?? "start";
  const at = all("[data-field]").some((one) => one.dataset.field === name) ? name : name.startsWith("agents") ? "agents" : name.startsWith("context") ? "context" : "start";
  const box = problem(at, refusal(facts));
  if (!isSent) return;
  const fold = box.closest("details");
  if (fold) fold.open = true;
  ($("[aria-invalid=true]", box) ?? $("input:not([type=checkbox]), textarea, button", box) ?? field("go")).focus();
  box.scrollIntoView({ block: "center" });
}

// -- The estimate -------------------------------------------------------------------------------------------------------

let asked = 0;
let isNew = false; // something was changed since it was last asked about

// What can be told without asking.
function wrong(body) {
  const turns = field("max_turns").value.trim();
  if (turns && !/^[1-9]\d{0,4}$/.test(turns)) return { field: "max_turns", detail: `“${turns}” is no number of turns`, fix: "write a whole number, such as 20" };
  if (body && !body.question) return { field: "question", detail: "Write what they should discuss" };
  if (body && !body.agents.length) return { field: "agents", detail: "Choose who takes part", fix: "press one or two of the cards" };
  if (body && isShared() && seats.every((one) => one.elsewhere)) return { field: "agents", detail: "Choose who takes part here", fix: "press one of the cards" };
  if (body && isShared() && !field("engine").value.trim()) return { field: "engine", detail: "Name what carries the dialog", fix: "a git repository or a PostgreSQL database that both sides reach" };
  if (body && misfit()) return { field: "agents", detail: misfit().words, fix: "add or remove agents, or choose another way to talk" };
  return null;
}

function drawEstimate(words = "", notes = []) {
  put($("#estimate"), words);
  $("#estimate-notes").replaceChildren(...notes.map((note) => make("li", { text: note })));
}

async function estimate() {
  if (!isNew) return; // what Start was refused for stays until something is changed
  isNew = false;
  const mine = ++asked;
  const fault = wrong();
  if (fault || !seats.length || misfit()) {
    clear();
    drawEstimate();
    if (fault) refused(fault, false);
    return;
  }
  let answer;
  try {
    const body = wanted();
    answer = await ask("/estimate", { body: { ...body, question: body.question || EXAMPLE, elsewhere: away() }, seconds: 30 });
  } catch {
    return; // the lists say when Home is gone
  }
  if (mine !== asked) return;
  clear();
  if (answer.ok) {
    drawEstimate(answer.facts.words, answer.facts.notes);
  } else drawEstimate();
  if (!answer.ok) refused(answer.facts, false);
}

const soonEstimate = soon(estimate, 350);

function changed() {
  isNew = true;
  keep();
  if (!isKnown) return;
  drawLeaves();
  drawFolds();
  soonEstimate();
}

// -- Context files: what goes along, as it goes -------------------------------------------------------------------------

// Shows all of them anew: what they may have together depends on each.
async function attach(paths) {
  const all = [...new Set([...context.map((one) => one.path), ...paths.map((path) => path.trim()).filter(Boolean)])];
  let answer = { ok: true, facts: { files: [] } };
  try {
    if (all.length) answer = await ask("/context", { body: { project: field("project").value.trim(), paths: all }, seconds: 20 });
  } catch {
    answer = { ok: false, facts: { detail: "Home does not answer", fix: "start it again in a terminal: dialogd open" } };
  }
  const { files = [], ...facts } = answer.facts;
  const bad = files.filter((one) => one.refused);
  const said = [...bad.map((one) => refusal({ detail: `${one.path}: ${one.refused}`, fix: one.fix })), ...(answer.ok ? facts.refused ? [refusal({ detail: facts.refused, fix: facts.fix })] : [] : [refusal(facts)])];
  if (answer.ok) {
    context = files.filter((one) => !one.refused);
    if (!said.length) field("context-path").value = "";
    drawContext();
    changed();
  }
  contextProblem = said.join(". ");
  problem("context", contextProblem);
}

function drawContext() {
  const open = all("#context-files details[open]").map((one) => one.dataset.path);
  $("#context-files").replaceChildren(...context.map((one, index) => make("li", {},
    make("details", { open: open.includes(visible(one.path)) || context.length === 1, "data-path": one.path },
      make("summary", {}, make("code", { text: one.name || one.path }), " ", make("span", { class: "hint", text: words(size(one.size), one.secrets && `${plural(one.secrets, "secret")} taken out`, one.cut && "cut: the rest does not go along") })),
      make("pre", { tabindex: "0", role: "region", "aria-label": `${one.name || one.path}, as it is sent`, text: one.text || "(empty)" })),
    make("button", { type: "button", class: "quiet small", "data-do": "detach", "data-index": String(index), text: "Remove", "aria-label": `Remove ${one.name || one.path}` }))));
}

const size = (bytes) => (bytes < 1000 ? plural(bytes, "byte") : bytes < 1e6 ? `${(bytes / 1000).toFixed(1)} kB` : `${(bytes / 1e6).toFixed(1)} MB`);

// -- Start --------------------------------------------------------------------------------------------------------------

// The same form sent again, because no answer came, is the same dialog.
let lately = {};
function keyed(body) {
  const form = JSON.stringify(body);
  if (lately.form !== form) lately = { form, key: crypto.randomUUID() };
  return { ...body, key: lately.key };
}

async function start(rehearsal) {
  if (field("rehearse-go").disabled) return undefined; // one is being started: a key that is held down starts no other
  const body = rehearsal ? { question: field("question").value.trim() || EXAMPLE, template: chosenTemplate(), rehearsal, slow: SLOW } : wanted();
  [isNew, asked] = [false, asked + 1];
  clear();
  const fault = rehearsal ? null : wrong(body);
  if (fault) return refused(fault, true);
  if (!rehearsal && isShared()) return share(body);
  const button = rehearsal ? field("rehearse-go") : field("go");
  const name = button.textContent;
  for (const one of [field("rehearse-go"), field("go")]) one.disabled = true;
  put(button, "Starting…");
  say("Starting");
  let [answer, url] = [null, ""];
  try {
    answer = await ask("/start", { body: keyed(body), seconds: 180 });
    if (answer.ok) url = own(answer.facts.url) || (await follow(answer.facts));
  } catch (error) {
    answer = { ok: false, facts: error.facts ?? { detail: "Home does not answer", fix: "see under Running whether it has begun; start Home again in a terminal: dialogd open" } };
  }
  field("rehearse-go").disabled = false;
  field("go").disabled = !isKnown;
  put(button, name);
  if (!answer.ok) {
    if (rehearsal) phrase($("#rehearse-problem"), refusal(answer.facts));
    else refused(answer.facts, true);
    say(refusal(answer.facts));
    return undefined;
  }
  lately = {};
  if (!rehearsal) field("question").value = "";
  context = rehearsal ? context : [];
  keep();
  location.assign(url);
  return undefined;
}

// -- With somebody on another machine -----------------------------------------------------------------------------------

let leaves = ""; // the form of which it is shown what leaves this machine

const away = () => seats.flatMap((one, index) => (one.elsewhere ? [LETTERS[index]] : []));
const isShared = () => away().length > 0;

function drawLeaves(form = "", lines = []) {
  leaves = form;
  $("#share-lines").replaceChildren(...lines.map((text) => make("li", { text: capital(text) })));
  show($("#share-leaves"), lines.length > 0);
  put(field("go"), !isShared() ? "Start" : form ? "Share it and start" : "See what leaves this computer");
}

// First what would leave this machine; then the same form again shares it, and gives the line for the other side.
async function share(asked) {
  const body = keyed({ ...asked, engine: field("engine").value.trim(), elsewhere: away() });
  const sure = leaves === body.key;
  const answer = await sent(field("go"), sure ? "Sharing…" : "Looking…", "/share", { ...body, sure });
  if (!answer.ok) {
    drawLeaves();
    return refused(answer.facts, true);
  }
  if (!sure) {
    drawLeaves(body.key, answer.facts.lines);
    return $("#share-leaves").scrollIntoView({ block: "nearest" });
  }
  lately = {};
  field("question").value = "";
  [context, seats] = [[], usual()];
  drawContext();
  drawCast();
  keep();
  put($("#line-text"), answer.facts.line);
  field("line-to").href = own(answer.facts.url) || (await follow(answer.facts));
  show($("#line"), true);
  $("#line").scrollIntoView({ block: "center" });
  return field("line-copy").focus();
}

async function join() {
  for (const name of ["line", "join"]) problem(name, "");
  const body = { line: field("join-line").value.trim(), backend: field("join-agent").value, project: field("join-project").value.trim() };
  if (!body.line) return problem("line", "Paste the line that you were given");
  const answer = await sent(field("join-go"), "Joining…", "/join", body);
  if (!answer.ok) return problem(answer.facts.field === "line" ? "line" : "join", refusal(answer.facts));
  return location.assign(own(answer.facts.url) || (await follow(answer.facts)));
}

// Sends what a button stands for; it says so, and cannot be pressed meanwhile.
async function sent(button, meanwhile, path, body) {
  const name = button.textContent;
  button.disabled = true;
  put(button, meanwhile);
  say(meanwhile);
  let answer;
  try {
    answer = await ask(path, { body, seconds: 180 });
  } catch {
    answer = { ok: false, facts: { detail: "Home does not answer", fix: "see under Running whether it has begun; start Home again in a terminal: dialogd open" } };
  }
  button.disabled = false;
  put(button, name);
  if (!answer.ok) say(refusal(answer.facts));
  return answer;
}

// -- What was decided is carried out ------------------------------------------------------------------------------------

let would = ""; // the form of which it is shown what it would be

const carried = () => ({ dialog: location.hash.match(/^#build=([\w-]+)$/)?.[1] ?? "", repo: field("repo").value.trim(), gate: field("gate").value.trim(), setup: field("setup").value.trim(), network: field("network").checked, parallel: Number(field("parallel").value) || 1 });

async function showCarry() {
  const { dialog } = carried();
  show($("#carry"), dialog !== "");
  if (!dialog) return;
  const found = (await read(`/dialogs?${new URLSearchParams({ search: "" })}`, 15)).dialogs.find((one) => one.id === dialog);
  put($("#carry .hint b"), found?.topic || `dialog ${dialog}`);
  drawWould();
  $("#carry").scrollIntoView();
  field("repo").focus({ preventScroll: true });
}

function drawWould(lines = []) {
  would = lines.length ? JSON.stringify(carried()) : "";
  $("#carry-would").textContent = lines.map(visible).join("\n");
  show($("#carry-would"), lines.length > 0);
  put(field("carry-go"), lines.length ? "Start it" : "See what it would be");
}

// First what it would be, and what it may cost; then the same form again begins it.
async function carry() {
  const body = carried();
  const isSeen = would === JSON.stringify(body);
  const button = field("carry-go");
  for (const name of ["repo", "gate", "carry"]) problem(name, "");
  button.disabled = true;
  put(button, isSeen ? "Starting…" : "Looking…");
  let answer;
  try {
    answer = await ask(isSeen ? "/build" : "/build/look", { body, seconds: 1800 });
    if (answer.ok && isSeen) location.assign(own(answer.facts.url) || (await follow(answer.facts)));
  } catch (error) {
    answer = { ok: false, facts: error.facts ?? { detail: "Home does not answer", fix: "start it again in a terminal: dialogd open" } };
  }
  button.disabled = false;
  drawWould(answer.ok ? answer.facts.lines : []);
  if (!answer.ok) problem(answer.facts.field === "repo" ? "repo" : "carry", refusal(answer.facts));
}

// The page of a dialog whose daemons still start, once one of them answers.
async function follow({ id, file }) {
  for (let tries = 0; tries < 240; tries += 1) {
    const found = (await read("/dialogs", 8)).dialogs.find((one) => one.id === id || one.file === file);
    if (own(found?.url)) return own(found.url);
    if (found?.state === "ended") return own(found.past);
    await new Promise((done) => setTimeout(done, 250));
  }
  throw Object.assign(new Error(), { facts: { detail: `No daemon of the dialog in ${file} answers`, fix: "see in a terminal what it said: dialogd logs" } });
}

// A page of this machine, by the name under which this one was opened: another name is another site.
function own(url) {
  if (!url) return "";
  const to = new URL(url, location.href);
  if (to.origin === location.origin) return to.href;
  return to.protocol === "http:" && ["localhost", "127.0.0.1"].includes(to.hostname) ? `http://${location.hostname}:${to.port}/` : "";
}

// -- The lists ----------------------------------------------------------------------------------------------------------

const stuck = new Map(); // why a dialog did not go on: the lists are drawn anew

function row(one) {
  const url = own(one.url) || own(one.past);
  const title = url ? make("a", { href: url, text: one.topic || "Without a topic" }) : make("b", { text: one.topic || "Without a topic" });
  const people = one.agents.map((agent, index) => make("span", { class: `who agent-${index % 10}` }, make("span", { class: "dot", "aria-hidden": "true" }), make("span", { text: agent.name || agent.id })));
  const at = new Date(one.ended || one.started);
  const facts = words(one.turns && plural(one.turns, "turn"), !one.rehearsal && one.cost, Number.isNaN(at.getTime()) ? "" : when(at));
  return make("li", { "data-state": one.state },
    make("p", { class: "row-title" }, title, one.rehearsal ? make("span", { class: "tag", text: "rehearsal" }) : ""),
    make("p", { class: "row-words", text: capital(one.words) }),
    one.found ? make("p", { class: "row-found", text: `“${one.found}”` }) : "",
    one.state === "asleep" ? make("p", {}, make("button", { type: "button", class: "quiet small", "data-do": "go-on", "data-dialog": one.id, text: "Go on", "aria-label": `Go on with ${one.topic}` }), " ", make("span", { class: "problem", role: "alert", text: stuck.get(one.id) ?? "" })) : "",
    make("p", { class: "row-facts" }, ...people, make("span", { text: facts })));
}

function when(at) {
  const now = new Date();
  if (at.toDateString() === now.toDateString()) return at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  return at.toLocaleDateString([], { day: "numeric", month: "short", year: at.getFullYear() === now.getFullYear() ? undefined : "numeric" });
}

function fill(section, dialogs) {
  show(section, dialogs.length > 0);
  const list = $(".dialogs", section);
  const print = JSON.stringify(dialogs);
  if (list.dataset.print === print) return; // what has not changed keeps its focus
  const focused = list.contains(document.activeElement) ? document.activeElement.getAttribute("href") : "";
  list.replaceChildren(...dialogs.map(row));
  list.dataset.print = print;
  if (focused) all("a", list).find((one) => one.getAttribute("href") === focused)?.focus();
}

let shown = []; // earlier dialogs
let behind = 0; // what to ask for, to get those after them; 0 for none
let sought = "";
let answered = ""; // the words that what is shown was found by
const isOpen = (one) => one.waits_for_you || !["ended", "asleep"].includes(one.state);

async function look() {
  if (document.hidden) return; // Home ends when nobody looks
  try {
    const first = await read("/dialogs", 8);
    const open = first.dialogs.filter(isOpen);
    const waiting = open.filter((one) => one.waits_for_you);
    if (waiting.length > Number($("#waiting").dataset.count ?? 0)) say(`${plural(waiting.length, "dialog waits", "dialogs wait")} for you`);
    $("#waiting").dataset.count = String(waiting.length);
    document.title = waiting.length ? `(${waiting.length}) dialogd` : "dialogd";
    fill($("#waiting"), waiting);
    fill($("#running"), open.filter((one) => !one.waits_for_you));
    if (!sought && !isReadingOn) drawPast(first);
    else if (sought !== answered) search().catch(() => {}); // it failed before: Home was busy
    welcome(!first.dialogs.length);
    show($("#gone"), false);
  } catch {
    put($("#gone"), "Home does not answer any more: it ends when nobody has looked at it for an hour. Your dialogs go on without it, and what you typed stays here. Start it again in a terminal: dialogd open");
    show($("#gone"), true);
  }
}

// Who is here for the first time reads what this is, and finds the rehearsal there. Where there is nothing else to
// begin, it stands at the question, and both before everything, on every visit.
function welcome(isFirst) {
  show($("#welcome"), isFirst);
  arrange();
}

function arrange() {
  const focused = document.activeElement;
  const place = isBare() ? $("[data-field=question]") : $("#welcome").hidden ? $("#new") : $("#welcome");
  if (field("rehearse").parentElement !== place) place.append(field("rehearse"));
  const before = $(isBare() ? "#welcome" : "#running");
  if ($("#new").previousElementSibling !== before) before.after($("#new"));
  if (document.activeElement !== focused) focused.focus({ preventScroll: true }); // what is moved loses it
}

let isReadingOn = false; // more than the first page is shown: it stays as it is

function drawPast(answer, isMore = false) {
  const past = answer.dialogs.filter((one) => !isOpen(one));
  shown = isMore ? [...shown, ...past] : past;
  behind = answer.more ? answer.after : 0;
  fill($("#past"), shown);
  show($("#past-more"), behind > 0);
  show($("#past"), shown.length > 0 || sought !== "");
  show($("#to-past"), !$("#past").hidden);
  show($("#past-none"), !shown.length);
  put($("#past-none"), shown.length ? "" : "No earlier dialog has these words.");
}

async function search() {
  const words = $("#search").value.trim();
  sought = words;
  isReadingOn = false;
  const answer = await read(`/dialogs?${new URLSearchParams({ search: words })}`, 15);
  if (sought !== words) return;
  answered = words;
  drawPast(answer);
}

async function more() {
  isReadingOn = true;
  const words = sought;
  const answer = await read(`/dialogs?${new URLSearchParams({ search: words, after: behind })}`, 15);
  if (sought === words) drawPast(answer, true);
}

// -- What is pressed and typed ------------------------------------------------------------------------------------------

const acts = {
  seat: (button) => (seatOrNot(button.dataset), changed()),
  unseat: ({ dataset }) => (seats.splice(Number(dataset.index), 1), reseated("unseat", Number(dataset.index) - 1)),
  again: ({ dataset }) => (seats.splice(Number(dataset.index) + 1, 0, { ...seats[Number(dataset.index)] }), reseated("again", Number(dataset.index) + 1)),
  fit: ({ dataset }) => {
    const before = [...seats];
    seats = Array.from({ length: Number(dataset.count) }, (_, index) => ({ ...before[index % before.length], ...(index < before.length ? {} : { session: "" }) })).filter((one) => one.session || one.backend || one.elsewhere);
    drawCast();
    changed();
    field("question").focus();
  },
  up: ({ dataset }) => {
    const index = Number(dataset.index);
    seats.splice(index - 1, 2, seats[index], seats[index - 1]);
    reseated("up", index - 1);
  },
  attach: () => attach([field("context-path").value]),
  detach: ({ dataset }) => (context.splice(Number(dataset.index), 1), field("context-path").focus(), attach([])),
  "go-on": async (button) => {
    button.disabled = true;
    const answer = await ask("/continue", { body: { dialog: button.dataset.dialog }, seconds: 60 });
    if (answer.ok) return location.assign(own(answer.facts.url) || (await follow(answer.facts)));
    button.disabled = false;
    stuck.set(button.dataset.dialog, refusal(answer.facts));
    return put(button.nextElementSibling, stuck.get(button.dataset.dialog));
  },
  rehearse: () => start(true),
  "rehearse-build": async (button) => {
    put($("#rehearse-problem"), "");
    const answer = await sent(button, "Starting…", "/build/rehearse", {});
    if (!answer.ok) return phrase($("#rehearse-problem"), refusal(answer.facts));
    return location.assign(own(answer.facts.url) || (await follow(answer.facts)));
  },
  copy: async (button) => {
    getSelection().selectAllChildren($("#line-text"));
    const isCopied = await navigator.clipboard.writeText($("#line-text").textContent).then(() => true, () => false);
    put(button, isCopied ? "Copied" : "Selected");
  },
  check: async (button) => {
    button.disabled = true;
    put($("#checked"), "Looking…");
    try {
      choices = { ...choices, ...(await read("/choices?again=true", 30)) };
      if (!seats.length) seats = usual();
      drawCast();
      changed();
      put($("#checked"), isBare() ? "Nothing new is here." : "");
    } catch (error) {
      put($("#checked"), error.message);
    }
    button.disabled = false;
  },
  more: () => more().catch(look),
};

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-do]");
  if (button && !button.disabled) acts[button.dataset.do](button);
});

$("#start").addEventListener("input", (event) => {
  const { seat, model } = event.target.dataset;
  if (seat) seats[Number(seat)].project = event.target.value.trim();
  if (model) seats[Number(model)].model = event.target.value.trim();
  if (event.target.name === "template") drawSeats();
  if (event.target.id !== "context-path") changed();
});

$("#start").addEventListener("submit", (event) => {
  event.preventDefault();
  start(isBare());
});

$("#start").addEventListener("keydown", (event) => {
  if (event.isComposing) return;
  if (event.key === "Enter" && event.target.id === "context-path") {
    event.preventDefault();
    attach([event.target.value]);
  } else if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && event.target.id === "question") {
    event.preventDefault();
    start(isBare());
  } else if (event.key === "Enter" && event.target.matches("input:not([type=submit])")) event.preventDefault(); // Enter in a limit starts nothing that costs
});

field("with").addEventListener("change", ({ target }) => {
  seats = target.checked ? [...seats, { backend: "", session: "", model: "", project: "", elsewhere: true }] : seats.filter((one) => !one.elsewhere);
  drawCast();
});

$("#join-form").addEventListener("submit", (event) => {
  event.preventDefault();
  join();
});

$("#carry-form").addEventListener("submit", (event) => {
  event.preventDefault();
  carry();
});
$("#carry-form").addEventListener("input", () => drawWould());
addEventListener("hashchange", showCarry);

$("#search-form").addEventListener("submit", (event) => event.preventDefault());
$("#search").addEventListener("input", soon(() => search().catch(look), 200));

document.addEventListener("visibilitychange", look);
setInterval(look, LOOK);

restoreText();
const looked = look();
showCarry().catch(look);
try {
  choices = { ...choices, ...(await read("/choices", 30)) };
  drawChoices();
  restoreChoices();
  drawCast();
  field("go").disabled = false;
  changed();
  await looked;
  if (!$("#question").value && matchMedia("(hover: hover)").matches && $("#waiting").hidden && $("#running").hidden && $("#carry").hidden) field("question").focus({ preventScroll: true });
} catch (error) {
  put($("#start-problem"), `What can be chosen here could not be read: ${error.message}. To go on: load this page again`);
}
await looked;
show(field("rehearse"), true); // only where it stays: a click on what is being moved is lost
