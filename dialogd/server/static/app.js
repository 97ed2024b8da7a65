// The page: it begins as the daemon delivers it, and is kept up to date from there. See docs/using.md.
import * as acts from "./acts.js";
import * as controls from "./controls.js";
import * as entries from "./entries.js";
import * as find from "./find.js";
import * as live from "./live.js";
import "./shared.js";

function toAnchor() {
  const anchor = location.hash.slice(1);
  if (/^[tn][0-9.]+$/.test(anchor)) entries.goTo(anchor).catch(() => {});
}

entries.begin();
controls.begin(live.changed);
acts.begin();
find.begin();
live.begin();
addEventListener("hashchange", toAnchor);
toAnchor();
