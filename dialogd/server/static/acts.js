// What the reader can do beside a turn and a proposal: quiet until wanted, and each reached by keys and by touch.
import { $, all, put, say } from "./dom.js";
import { draft } from "./controls.js";
import { cast } from "./head.js";

const MOST = 2000; // characters of a quotation
const entryOf = (button) => button.closest(".entry");
const titleOf = (entry) => (entry.dataset.number === "0" ? "your note" : `turn ${entry.dataset.number}`);
const isAgent = (who) => cast().some((agent) => agent.id === who);
const toAuthor = (who) => ({ to: isAgent(who) ? who : "" });

const ACTS = {
  reply: (button) => draft(`On ${titleOf(entryOf(button))}: `, toAuthor(entryOf(button).dataset.by)),
  quote: (button) => quote(entryOf(button)),
  "copy-words": (button) => copy(button, wordsOf(entryOf(button)), "Copied"),
  link: (button) => link(button),
  unfold: (button) => unfold(button),
  about: (button) => draft(`About ${button.dataset.ref}: `, toAuthor(entryOf(button).dataset.by)),
  veto: (button) => open($("#veto-dialog"), button.dataset.ref),
  instead: (button) => draft("", { instead: button.dataset.ref }),
};

// The words of an entry as they are seen, without its buttons; what of it is selected, if something is.
function wordsOf(entry) {
  const parts = all(":scope > .body, :scope > .block .block-title, :scope > .block .block-text, :scope > .remarks", entry);
  return parts.map((part) => part.innerText.trim()).filter(Boolean).join("\n\n");
}

function quote(entry) {
  const chosen = getSelection();
  const isInside = chosen.rangeCount && entry.contains(chosen.getRangeAt(0).commonAncestorContainer);
  const words = (isInside && chosen.toString().trim()) || ($(":scope > .body", entry)?.innerText ?? wordsOf(entry)).trim();
  const short = words.length > MOST ? `${words.slice(0, MOST)} …` : words;
  draft(`${short.split("\n").map((line) => `> ${line}`).join("\n")}\n\n`);
}

async function copy(button, words, done) {
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(words);
    put(button, done);
    say(`${done}.`);
  } catch {
    getSelection().selectAllChildren(entryOf(button));
    put(button, "Selected");
    say("The browser does not let the page copy; the text is selected.");
  }
  setTimeout(() => put(button, before), 2000);
}

function link(button) {
  const { id } = entryOf(button);
  history.replaceState(null, "", `#${id}`);
  return copy(button, `${location.origin}/#${id}`, "Copied");
}

function unfold(button) {
  const facts = $(":scope > .facts", entryOf(button));
  facts.hidden = !facts.hidden;
  button.setAttribute("aria-expanded", String(!facts.hidden));
}

function open(dialog, ref) {
  const form = $("form", dialog);
  form.reset();
  put($(".result", form), "");
  put($("[data-ref-words]", dialog), ref);
  $("input[type=hidden]", form).value = ref;
  dialog.showModal();
}

export function begin() {
  document.addEventListener("click", (event) => {
    const button = event.target.closest(".acts [data-do], .unfold");
    if (button) ACTS[button.dataset.do]?.(button);
  });
}
