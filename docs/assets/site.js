// What the theme leaves out: a scrolling region is reached by the keyboard, and each code block's buttons have a name.
"use strict";

let blocks = 0;

function mend() {
  for (const nav of document.querySelectorAll("nav.md-code__nav:not([aria-label])")) {
    blocks += 1;
    nav.setAttribute("aria-label", `Code ${blocks}`);
  }
  for (const region of document.querySelectorAll(".md-typeset pre > code, .md-typeset__scrollwrap, .md-typeset__table")) {
    if (region.scrollWidth > region.clientWidth) {
      region.tabIndex = 0;
    }
  }
}

document.addEventListener("DOMContentLoaded", () => {
  mend();
  // The theme adds its buttons later.
  new MutationObserver(mend).observe(document.body, { childList: true, subtree: true });
  window.addEventListener("resize", mend);
});
