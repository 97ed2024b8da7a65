// The end: the decision as the daemon writes it, and what the person can do about it.
import { $, dress, make, put, say, show, visible } from "./dom.js";
import { beckon, isSticking, stayAt, toEnd } from "./entries.js";
import { homeAt, now } from "./head.js";
import { empty, fetchPiece, place, save } from "./fragments.js";

const card = $("#outcome");
const piece = $("#outcome-piece");
const rest = $("#outcome-rest"); // what is read after what can be done
const FORMS = { reject: $("#reject-form"), continue: $("#continue-form") };
let shownAs = ""; // of which end the card is
let has = ""; // what its piece was fetched for; the end alone where it could not be
let hasMoved = false;

async function render({ ended, approved, total, dialog, isLost }) {
  if (!ended) return close();
  const { kind, is_agreed: isResult } = ended; // a result is taken or not; from all other ends one goes on, or not
  const key = `${dialog} ${kind} ${ended.entry}`;
  const isStopped = kind === "stopped";
  card.dataset.outcome = kind;
  show($("#approve-form"), !approved && !isStopped && kind !== "error");
  show($("#reject-open"), isResult);
  show($(".of-budget", card), kind === "budget");
  $("#continue-budget").required = kind === "budget";
  $("#continue-open").classList.toggle("primary", !isResult);
  put($("#approve-form button"), isResult ? "Approve" : "Leave it at that");
  show($("#continue-open"), !(isLost && isStopped)); // nobody is left who could
  if (isLost && isStopped) open("continue", false);
  show($("#outcome-downloads"), !isLost);
  const isNew = key !== shownAs;
  shownAs = key;
  const follows = isSticking();
  const wanted = `${key} ${approved} ${total}`;
  if (wanted !== has) await fetchInto(wanted, ended, isLost);
  if (shownAs !== key) return; // it has gone on meanwhile
  $("#approve-form button").classList.toggle("primary", isResult && !$('[data-do="takeover"]', piece)); // one loud button
  show(card, true);
  if (isNew) arrive(follows);
}

async function fetchInto(wanted, ended, isLost) {
  try {
    if (isLost) throw new Error("");
    const [first, more] = (await fetchPiece("/page/end")).split("<!-- rest -->");
    place(piece, first);
    place(rest, more ?? "");
    has = wanted;
  } catch {
    if (has.startsWith(shownAs)) return; // drawn anew under a click, it would swallow that
    tellWithout(ended);
    has = shownAs;
  }
}

// The daemons are gone before they could be asked: what is known of the end, and where and how all of it is found.
function tellWithout(ended) {
  const { file } = document.body.dataset;
  const title = ended.words.replace(/\.$/, "");
  const [open, home] = [now()?.proposals ?? [], homeAt()];
  const source = [$("#topic").textContent, `${title}${ended.reason ? `: ${ended.reason}` : "."}`, ...open.map(({ ref, words }) => `${ref}: ${words}`), file];
  empty(rest);
  empty(piece);
  piece.append(
    make("h2", { id: "outcome-title", text: title }),
    ...(ended.reason ? [make("p", { class: "because", text: ended.reason })] : []),
    ...(open.length ? [make("h3", { text: "Proposed so far" }), make("ul", {}, ...open.map(({ ref, words }) => make("li", {}, make("b", { text: ref }), ` ${visible(words)}`)))] : []),
    make("h3", { text: "What now" }),
    ...(home ? [make("p", {}, make("a", { href: home, text: "Open it from Home" }))] : [make("p", { text: "To open it from Home:" }), boxed("dialogd open")]),
    make("p", { text: "Its daemons have ended with it, and this page can fetch no more. All that was said stands in the file:" }),
    boxed(file),
    ...LATER.flatMap(([words, about]) => [make("p", { text: about }), boxed(`${words || now()?.again} --file ${file}`)]),
    make("p", { id: "outcome-source", hidden: true, text: source.join("\n\n") }),
  );
  dress(piece);
}

// "": the command that starts its agents again.
const LATER = [["", "To go on with the same agents, in a terminal:"], ["dialogd plan", "To read what came of it:"], ["dialogd export --to html", "To make a document of it:"]];
const boxed = (words) => make("div", { class: "code" }, make("pre", { text: words }));

// A reader at the end sees the card from its top; one who reads further up is told that there is one.
function arrive(follows) {
  if (location.hash && !hasMoved) return;
  hasMoved = true;
  if (follows) stayAt(card);
  else beckon("The dialog has ended");
}

function close() {
  if (!shownAs) return;
  shownAs = has = "";
  show(card, false);
  empty(piece);
  empty(rest);
  for (const name of Object.keys(FORMS)) open(name, false);
  toEnd();
}

function open(name, yes = FORMS[name].hidden) {
  for (const [one, form] of Object.entries(FORMS)) {
    const isOpen = one === name && yes;
    show(form, isOpen);
    $(`#${one}-open`).setAttribute("aria-expanded", String(isOpen));
  }
  if (yes) $("textarea", FORMS[name]).focus();
}

async function copy(button) {
  const text = $("#outcome-source", card)?.textContent ?? piece.innerText;
  try {
    await navigator.clipboard.writeText(text);
    put(button, "Copied");
    say("Copied.");
  } catch {
    getSelection().selectAllChildren($(".decided", piece) ?? piece);
    put(button, "Selected");
    say("The browser does not let the page copy; the text is selected.");
  }
  setTimeout(() => put(button, "Copy"), 2000);
}

card.addEventListener("click", (event) => {
  const link = event.target.closest("a.download");
  if (link && !(event.ctrlKey || event.metaKey || event.shiftKey)) {
    event.preventDefault();
    save(link, $(".downloads + .said", card));
  } else if (event.target.closest("#outcome-copy")) copy(event.target);
  else if (event.target.closest("#reject-open")) open("reject");
  else if (event.target.closest("#continue-open")) open("continue");
});
document.addEventListener("dialogd:end", ({ detail }) => render(detail));
