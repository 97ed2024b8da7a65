// What happens, as it happens: the event stream; and what to do when the daemon of this page is gone.
import { $, make, read, soon, timeOfDay } from "./dom.js";
import { addAsTold, catchUp, goTo, placeNow, refreshChanged, write } from "./entries.js";
import { fillIn, unsent } from "./composer.js";
import { homeAt, notice, now, render, renderAgent, renderLost, renderStopped } from "./head.js";

const LOOK = 5000; // between two looks at the state, in case an event got lost
const GRACE = 1500; // for a daemon that is started again, before the page goes on with another
const SLOW = 10000; // for one that is there and does not answer: it may only be busy
const WAITS = [0, 300, 400, 500, 700, 1000, 2000, 4000, 5000];
const HIDDEN = 30000; // until a page that nobody sees lets go of its stream: browsers allow six in all

let stream = null;
let lostAt = 0;
let tries = 0;
let trying = 0;
let hiddenTimer = 0;
let isAlone = false; // no daemon of this dialog answered, when the others were asked
let last = null; // the entry that the stream told last
let end = null; // the note of the person that ended the dialog, as the stream told it

// -- the state ---------------------------------------------------------------------------------------------------

let looking = null;
let lookAgain = false;

export async function look() {
  lookAgain = true;
  looking ??= (async () => {
    try {
      while (lookAgain) {
        lookAgain = false;
        const facts = await read("/page/state", 8);
        render(facts);
        readyProbe(facts);
        await refreshChanged(facts);
      }
    } finally {
      looking = null;
    }
  })();
  return looking;
}

const lookSoon = soon(() => look().catch(lost), 120);
export const changed = lookSoon;

// -- the stream --------------------------------------------------------------------------------------------------

function listen() {
  stream?.close();
  stream = new EventSource("/events?all=true");
  const on = (kind, work) => stream.addEventListener(kind, (event) => work(parsed(event.data)));
  stream.addEventListener("open", () => {
    tries = 0;
    catchUp().catch(lost);
    lookSoon();
  });
  stream.addEventListener("error", lost);
  for (const kind of ["turn", "note", "reset", "dropped"]) {
    on(kind, (facts) => {
      [last, end] = [facts, null];
      catchUp().catch(lost);
      lookSoon();
    });
  }
  on("text", write);
  on("agent", (facts) => {
    renderAgent(facts);
    lookSoon();
  });
  on("state", (facts) => {
    // Its reason begins with the name of the outcome.
    if (facts.outcome && last?.by === "USER") end = { ...last, why: facts.reason.replace(/^\S+\s*/, "") };
    lookSoon();
  });
  for (const kind of ["mark", "cost", "ready", "error", "appended", "call", "judged", "mirror"]) on(kind, lookSoon);
  on("warning", (facts) => notice(facts.text));
  on("draft", (facts) => notice(`A reply of ${facts.by} is not in the dialog (${facts.why}). It is kept as a draft, and ${facts.by} is shown it next time.`));
  on("bye", lost);
}

function parsed(data) {
  try {
    return JSON.parse(data) ?? {};
  } catch {
    return {};
  }
}

function rest() {
  stream?.close();
  stream = null;
}

// -- when it is gone ---------------------------------------------------------------------------------------------

const nameOf = (who) => now()?.agents.find((agent) => agent.id === who)?.name ?? who;
const hasStopped = () => now()?.outcome?.kind === "stopped";

// The stream has ended, or an answer did not come: see whether the daemon lives, and go on with it, or with another.
function lost() {
  rest();
  if (trying) return;
  trying = setTimeout(tryAgain, WAITS[Math.min(tries, WAITS.length - 1)]);
}

async function tryAgain() {
  try {
    render(await read("/page/state", 3));
    await catchUp();
    found();
  } catch (error) {
    tries += 1;
    lostAt ||= Date.now();
    if (end) {
      addAsTold(end);
      renderStopped(end.why);
    }
    tellOfLoss();
    const other = Date.now() - lostAt > (error.name === "TimeoutError" ? SLOW : GRACE) && !hasStopped() ? await another() : null;
    if (other) goOnWith(other);
    isAlone = other === "" && Boolean(probe);
    trying = 0;
    lost();
  }
}

function found() {
  if (lostAt) banner(`${nameOf(document.body.dataset.me)}'s daemon answers again. Nothing was lost.`, "good", 8000);
  lostAt = 0;
  isAlone = false;
  trying = 0;
  tries += 1; // until a stream opens: a daemon that answers and refuses the stream is not asked without a pause
  if (!stream && document.visibilityState !== "hidden") listen();
}

function tellOfLoss() {
  const since = timeOfDay(new Date(lostAt));
  const me = nameOf(document.body.dataset.me);
  const others = otherDaemons();
  renderLost(`Not connected to ${me}'s daemon since ${since}.`);
  if (hasStopped()) {
    banner(`Stopped: its daemons have ended with it. All of it stands in ${document.body.dataset.file}.${homeward()}`, "end", 0, wayHome());
    return;
  }
  if (isAlone) {
    banner(`No daemon of this dialog has answered since ${since}: it was stopped, or they were ended. Nothing is lost: all of it stands in the file.${homeward()}`, "bad", 0, wayHome());
    return;
  }
  const plan = others.length ? ` If it stays away, this page goes on with the daemon of ${others.map((agent) => agent.name).join(" or ")}.` : "";
  banner(`${me}'s daemon (${location.host}) has not answered since ${since}. Nothing is lost: all of it stands in the file. The page tries it again.${plan}`, "bad", 0, others.map(linkTo));
}

// Where a dialog is found whose daemons are gone; where Home does not run either, the command that opens it.
const homeward = () => (homeAt() ? "" : " Open it from Home: dialogd open");
const wayHome = () => (homeAt() ? [make("a", { href: homeAt(), text: "Open it from Home" })] : []);

// For a page that cannot find out by itself who answers: its daemon died before it had fetched what asks them.
const linkTo = (agent) => make("a", { href: here(agent.url), text: `Go to ${agent.name}'s page` });

// The agents with daemons of their own: those that answered when they were last asked, or else all.
function otherDaemons() {
  const others = (now()?.agents ?? []).filter((agent) => agent.url && !agent.own);
  const alive = others.filter((agent) => agent.alive !== false);
  return alive.length ? alive : others;
}

// The address of a daemon of this dialog that answers; "" for none.
function another() {
  const urls = otherDaemons().map((agent) => here(agent.url)).filter(Boolean);
  if (!probe || !urls.length) return "";
  return new Promise((answer) => {
    setTimeout(answer, GRACE * 2, ""); // one that never came does not answer either
    probe.onmessage = ({ data }) => answer(data);
    probe.postMessage(urls);
  });
}

// Who asks them: fetched while this daemon lives, and again whenever the others are at other addresses.
let probe = null;
let probed = "";
function readyProbe({ agents }) {
  const urls = agents.map((agent) => (agent.own ? "" : here(agent.url))).filter(Boolean).sort().join(" ");
  if (urls === probed) return;
  probed = urls;
  probe?.terminate();
  probe = urls ? new Worker("/page/probe.js") : null;
  if (probe) probe.onerror = () => (probed = ""); // it did not come: the next look fetches it again
}

// Under the name by which this page was called: for the browser, `localhost` and `127.0.0.1` are two sites.
function here(url) {
  const port = url.match(/^http:\/\/[a-z0-9.[\]:]+?:(\d{1,5})$/i)?.[1];
  return port ? `http://${location.hostname}:${port}` : "";
}

function goOnWith(url) {
  const words = unsent().slice(0, 50000);
  const carried = { from: document.body.dataset.me, at: lostAt, text: words.toWellFormed?.() ?? words, place: placeNow() };
  location.replace(`${url}/#on=${encodeURIComponent(JSON.stringify(carried))}`);
}

// What a page of another daemon handed over. Anybody may have written it: it is text for a field, and places to look.
export function takeOver() {
  const match = location.hash.match(/^#on=(.{1,600000})$/s);
  if (!match) return;
  history.replaceState(null, "", "/");
  let carried = {};
  try {
    carried = JSON.parse(decodeURIComponent(match[1])) ?? {};
  } catch {
    return;
  }
  const who = /^[A-Za-z][\w-]{0,63}$/.test(carried.from) ? carried.from : "";
  const at = Number.isFinite(carried.at) ? ` since ${timeOfDay(new Date(carried.at))}` : "";
  if (typeof carried.text === "string") fillIn(carried.text.slice(0, 50000));
  if (typeof carried.place === "string" && carried.place) goTo(carried.place).catch(() => {});
  if (who) banner(`The daemon of ${nameOf(who)} has not answered${at}. This page has gone on here, with the daemon of ${nameOf(document.body.dataset.me)}. To start the other one again: ${startOf(who)}`, "calm");
}

const startOf = (who) => now()?.agents.find((agent) => agent.id === who)?.start ?? `dialogd start ${who}`;

let bannerTimer = 0;

function banner(text, tone, milliseconds = 0, links = []) {
  clearTimeout(bannerTimer);
  const place = $("#banner");
  place.dataset.tone = tone;
  if (place.firstChild?.textContent !== text) place.replaceChildren(make("p", { text }), ...links, dismissal());
  if (milliseconds) bannerTimer = setTimeout(() => place.replaceChildren(), milliseconds);
}

function dismissal() {
  const button = make("button", { type: "button", class: "quiet", text: "Dismiss" });
  button.addEventListener("click", () => $("#banner").replaceChildren());
  return button;
}

// -- beginning, hiding, leaving ----------------------------------------------------------------------------------

export function begin() {
  listen();
  look()
    .then(takeOver)
    .catch(lost);
  setInterval(() => !lostAt && !trying && look().catch(lost), LOOK);
  addEventListener("pagehide", rest);
  addEventListener("pageshow", (event) => event.persisted && listen());
  document.addEventListener("visibilitychange", () => {
    clearTimeout(hiddenTimer);
    if (document.visibilityState === "hidden") hiddenTimer = setTimeout(rest, HIDDEN);
    else if (!stream && !lostAt) listen();
  });
}
