"use strict";
(() => {
  const root = document.documentElement;
  const tabs = [...document.querySelectorAll('[role="tab"]')];
  const name = (tab) => tab.getAttribute("aria-controls");

  const show = (wanted) => {
    const chosen = tabs.find((tab) => name(tab) === wanted) || tabs[0];
    for (const tab of tabs) {
      const on = tab === chosen;
      tab.setAttribute("aria-selected", String(on));
      tab.tabIndex = on ? 0 : -1;
      document.getElementById(name(tab)).classList.toggle("shown", on);
    }
    return chosen;
  };
  const fromAddress = () => show(location.hash.slice(1));
  root.classList.add("js");
  fromAddress();
  addEventListener("hashchange", fromAddress);
  for (const link of document.querySelectorAll('a[href^="#"]')) {
    link.addEventListener("click", (event) => {
      event.preventDefault();
      const chosen = show(link.getAttribute("href").slice(1));
      history.replaceState(null, "", "#" + name(chosen));
    });
  }
  document.querySelector('[role="tablist"]').addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const here = tabs.findIndex((tab) => tab.getAttribute("aria-selected") === "true");
    const next = tabs[(here + step + tabs.length) % tabs.length];
    event.preventDefault();
    show(name(next));
    next.focus();
  });

  // The nearest spot within a finger's reach speaks; without this script its <title> does.
  const tip = document.getElementById("tip");
  const texts = new Map();
  for (const spot of document.querySelectorAll(".hit")) {
    const title = spot.querySelector("title");
    texts.set(spot, title.textContent);
    spot.setAttribute("aria-label", title.textContent);
    title.remove();
  }
  let lit = null;
  const hide = () => {
    if (lit) lit.classList.remove("on");
    lit = null;
    tip.hidden = true;
  };
  const point = (event) => {
    const spots = [...event.currentTarget.querySelectorAll(".hit")].map((spot) => {
      const box = spot.getBoundingClientRect();
      return { spot, x: (box.left + box.right) / 2, y: (box.top + box.bottom) / 2 };
    });
    const away = (a, x, y) => Math.hypot(a.x - x, a.y - y);
    let best = null;
    for (const one of spots) {
      const far = away(one, event.clientX, event.clientY);
      if (far < 24 && !(best && far >= away(best, event.clientX, event.clientY))) best = one;
    }
    hide();
    if (!best) return;
    lit = best.spot;
    lit.classList.add("on");
    const same = spots.filter((one) => away(one, best.x, best.y) < 2);  // curves that meet here
    tip.textContent = same.slice(0, 8).map((one) => texts.get(one.spot)).join("\n");
    tip.hidden = false;
    const left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
    const above = event.clientY - tip.offsetHeight - 12;
    tip.style.left = Math.max(8, left) + "px";
    tip.style.top = (above < 8 ? event.clientY + 18 : above) + "px";
  };
  for (const svg of document.querySelectorAll("figure svg")) {
    svg.addEventListener("pointermove", point);
    svg.addEventListener("pointerdown", point);
    svg.addEventListener("pointerleave", (event) => {
      if (event.pointerType === "mouse") hide();
    });
  }
  addEventListener("scroll", hide, { passive: true });

  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const box of opened) box.open = true;
  });
  addEventListener("afterprint", () => {
    for (const box of opened) box.open = false;
  });
})();
