/* The picture on the front page: one number h, multiplied by λ at every 1. */
"use strict";

(() => {
  const TOO_SMALL = 0.05;
  const LONGEST = 24;
  const SVG = "http://www.w3.org/2000/svg";
  const box = document.getElementById("parity");
  const slider = box.querySelector("#parity-lambda");
  const typed = box.querySelector("#parity-bits");
  const shown = box.querySelector("#parity-value");
  const said = box.querySelector("#parity-says");
  const picture = box.querySelector("svg");

  /** After each bit: the bit, the state, the true parity, and what the sign of the state says. */
  function states(bits, lambda) {
    let h = 1;
    let ones = 0;
    return bits.map((bit) => {
      if (bit === 1) {
        h *= lambda;
        ones += 1;
      }
      const parity = ones % 2;
      const answer = Math.abs(h) < TOO_SMALL ? null : h < 0 ? 1 : 0;
      return { bit, h, parity, right: answer === parity };
    });
  }

  function element(name, attributes, text) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  }

  function draw(steps) {
    const left = 44;
    const width = Math.max(picture.clientWidth, 280); // a unit is a pixel, so text stays readable
    const step = Math.min(34, (width - left - 8) / Math.max(steps.length, 1));
    const right = left + step * steps.length + 4;
    const y = (h) => 80 - 62 * h;
    picture.replaceChildren();
    picture.setAttribute("viewBox", `0 0 ${width} 210`);
    picture.append(
      element("rect", {
        class: "lost", x: left - 6, width: right - left + 6,
        y: y(TOO_SMALL), height: y(-TOO_SMALL) - y(TOO_SMALL),
      }),
    );
    for (const h of [1, 0, -1]) {
      picture.append(element("line", { class: "axis", x1: left - 6, x2: right, y1: y(h), y2: y(h) }));
      picture.append(element("text", { class: "tick", x: left - 12, y: y(h) + 4 }, String(h)));
    }
    for (const [label, at] of [["bit", 170], ["right?", 196]]) {
      picture.append(element("text", { class: "tick", x: left - 6, y: at }, label));
    }
    steps.forEach(({ bit, h, right }, index) => {
      const x = left + step * index + step / 2;
      const kind = right ? "right" : "wrong";
      picture.append(
        element("rect", {
          class: kind, x: x - 0.33 * step, width: 0.66 * step, y: Math.min(y(0), y(h)), height: Math.max(Math.abs(y(h) - y(0)), 1.5),
        }),
        element("text", { class: "bit", x, y: 170 }, String(bit)),
        element("text", { class: `mark ${kind}`, x, y: 196 }, right ? "✓" : "✗"),
      );
    });
  }

  function sentence(steps, lambda) {
    const right = steps.filter((each) => each.right).length;
    const score = `Right after ${right} of ${steps.length} bits. `;
    if (lambda === -1) return score + "Every 1 flips the sign, and nothing fades: the sign is the parity, at any length.";
    if (lambda < 0) return score + "Every 1 flips the sign, but the state also fades until it is too small to read.";
    if (lambda === 1) return score + "Nothing happens at all: the state is the same after every bit.";
    return score + "The state only fades. Its sign never changes, so it cannot say odd.";
  }

  function update() {
    const bits = [...typed.value].filter((each) => each === "0" || each === "1").slice(0, LONGEST).map(Number);
    const lambda = Number(slider.value);
    const steps = states(bits, lambda);
    shown.textContent = lambda.toFixed(2).replace("-", "−");
    slider.setAttribute("aria-valuetext", `λ = ${lambda.toFixed(2)}`);
    draw(steps);
    said.textContent = steps.length ? sentence(steps, lambda) : "Type some bits, 0 and 1.";
    const heights = steps.map((each) => each.h.toFixed(2)).join(", ");
    picture.setAttribute("aria-label", `The state after each bit: ${heights}`);
  }

  window.addEventListener("resize", update);
  box.addEventListener("input", update);
  box.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.dataset.lambda !== undefined) slider.value = button.dataset.lambda;
    else typed.value = Array.from({ length: 16 }, () => (Math.random() < 0.5 ? "0" : "1")).join("");
    update();
  });
  box.hidden = false;
  update();
})();
