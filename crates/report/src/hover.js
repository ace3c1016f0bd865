"use strict";
for (const box of document.querySelectorAll(".chart")) {
  const { x: X, y: Y, series } = JSON.parse(box.dataset.values);
  const tip = box.querySelector(".tip");
  const position = (axis, v) => ((axis.log ? Math.log10(v) : v) - axis.lo) / (axis.hi - axis.lo);
  for (const s of series) {
    s.at = s.x.map((v) => position(X, v));
    s.bandAt = s.bandX.map((v) => position(X, v));
  }
  box.classList.add("live");

  const show = (event) => {
    const svg = [...box.querySelectorAll(".plot")].find((s) => s.getBoundingClientRect().width > 0);
    const [left, top, width, height] = svg.dataset.plot.split(" ").map(Number);
    const page = svg.getBoundingClientRect();
    const zoom = page.width / svg.viewBox.baseVal.width;
    const pointer = ((event.clientX - page.left) / zoom - left) / width;
    const hits = series.flatMap((s) => (s.at.length ? [[s, nearest(s.at, pointer)]] : []));
    if (!hits.length || pointer < -0.1 || pointer > 1.1) return hide();
    const [closest, i] = hits.reduce((a, b) =>
      Math.abs(b[0].at[b[1]] - pointer) < Math.abs(a[0].at[a[1]] - pointer) ? b : a);
    const at = closest.at[i];

    const close = 3 / width;
    const rows = hits.flatMap(([s]) => {
      const y = value(s.at, s.y, at, close, s.line, Y);
      return y ? [{ s, y, up: position(Y, y.value) }] : [];
    }).sort((a, b) => b.up - a.up);

    const guide = svg.querySelector(".hover");
    const px = left + at * width;
    guide.replaceChildren(
      make(svg, "path", { class: "guide", d: `M${px},${top}v${height}` }),
      ...rows.filter((r) => r.up <= 1).map((r) =>
        make(svg, "circle", { class: `dot ${r.s.color}`, cx: px, cy: top + height * (1 - r.up), r: 4 })));

    tip.replaceChildren(text("b", "", `${X.label} ${number(closest.x[i], true)} ${X.unit}`));
    for (const { s, y } of rows) {
      const low = value(s.bandAt, s.low, at, close, true, Y);
      const high = value(s.bandAt, s.high, at, close, true, Y);
      tip.append(
        text("i", s.color, ""), text("span", "", s.name),
        text("em", "", (y.exact ? "" : "≈ ") + number(y.value)),
        text("small", "", low ? `${number(low.value)} – ${number(high.value)}` : ""));
    }
    tip.hidden = false;
    const x = px * zoom;
    const beside = x + 14 + tip.offsetWidth <= page.width ? x + 14 : x - 14 - tip.offsetWidth;
    tip.style.left = `${Math.max(0, Math.min(beside, page.width - tip.offsetWidth))}px`;
    // On a phone the values would cover the lines, so they go under the chart.
    tip.style.top = svg.classList.contains("narrow") ? "100%" : `${top * zoom + 8}px`;
  };
  const hide = () => {
    tip.hidden = true;
    for (const guide of box.querySelectorAll(".hover")) guide.replaceChildren();
  };
  box.addEventListener("pointermove", show);
  box.addEventListener("pointerdown", show);
  box.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && hide());
  document.addEventListener("pointerdown", (event) => box.contains(event.target) || hide());
}

// The index of the entry of the sorted `all` closest to `at`.
function nearest(all, at) {
  const after = all.findIndex((v) => v >= at);
  if (after < 0) return all.length - 1;
  return after > 0 && at - all[after - 1] < all[after] - at ? after - 1 : after;
}

// The value drawn at `at`: a point if one is within `close`, otherwise the line between the neighbors of `at`.
function value(all, ys, at, close, line, axis) {
  if (!all.length) return null;
  const i = nearest(all, at);
  if (Math.abs(all[i] - at) <= close) return { value: ys[i], exact: true };
  const from = all[i] > at ? i - 1 : i;
  if (!line || from < 0 || from + 1 >= all.length) return null;
  const share = (at - all[from]) / (all[from + 1] - all[from]);
  const [a, b] = [ys[from], ys[from + 1]];
  return { value: axis.log ? a * (b / a) ** share : a + (b - a) * share, exact: false };
}

function number(v, short) {
  const size = Math.abs(v);
  const trim = (s) => (short && s.includes(".") ? s.replace(/\.?0+$/, "") : s);
  if (size > 0 && (size < 1e-3 || size >= 1e15)) {
    const [digits, power] = v.toExponential(3).split("e");
    const raised = [...power.replace("+", "")].map((c) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(c)]);
    return `${trim(digits)}×10${raised.join("")}`;
  }
  const prefix = size >= 1e3 ? Math.floor(Math.log10(size) / 3) : 0;
  return trim((v / 1000 ** prefix).toPrecision(5)) + ["", "k", "M", "G", "T"][prefix];
}

function make(svg, name, attributes) {
  const element = document.createElementNS(svg.namespaceURI, name);
  for (const [key, v] of Object.entries(attributes)) element.setAttribute(key, v);
  return element;
}

function text(name, color, content) {
  const element = document.createElement(name);
  element.className = color;
  element.textContent = content;
  return element;
}
