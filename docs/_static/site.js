/* What scrolls sideways can be reached by keyboard. */
"use strict";

(() => {
  function update() {
    for (const each of document.querySelectorAll("article pre, article .table-wrapper, article div.math")) {
      if (each.scrollWidth > each.clientWidth) each.tabIndex = 0;
      else each.removeAttribute("tabindex");
    }
  }
  window.addEventListener("load", update);
  window.addEventListener("resize", update);
})();
