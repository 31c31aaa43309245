"use strict";
// The control bar, sorting the answer grid, and unfolding its lines. Without this script the page stands as it was
// written. State lives in the URL's fragment.

const $ = (selector, within = document) => within.querySelector(selector);
const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];
const form = $("#controls"), heads = $$("#answers > thead th");
const boxes = $$("input", form).map(box => ({ box, tint: box.parentElement.className }));
const DEFAULTS = { precision: "", sort: "", theme: "" };
let state = { ...DEFAULTS };
const lines = $$(".line").map((row, order) =>
  ({ row, order, group: row.parentElement, detail: row.nextElementSibling, ...row.dataset }));
const chosen = () => state.precision ? state.precision.split(",") : boxes.map(({ box }) => box.value);

// A cell is sorted by its figure, or by its words; what is unknown comes last.

function key({ row, order }, column) {
  const cell = row.children[heads.findIndex(head => head.dataset.column === column)];
  if (column === "device") return order;
  return cell.dataset.sort === undefined ? cell.textContent.trim() : parseFloat(cell.dataset.sort);
}
function compare(one, other, direction) {
  if (Number.isNaN(one) || Number.isNaN(other)) return Number.isNaN(one) - Number.isNaN(other);
  const less = typeof one === "string" ? one.localeCompare(other) : one - other;
  return direction === "down" ? -less : less;
}

function draw() {
  const [column, direction] = state.sort.split(":");
  for (const group of new Set(lines.map(line => line.group))) {
    const own = lines.filter(line => line.group === group);
    own.sort((a, b) => (column ? compare(key(a, column), key(b, column), direction) : 0) || a.order - b.order);
    group.append(...own.flatMap(line => [line.row, line.detail]));
  }
  for (const head of heads) {
    if (head.dataset.column === column) head.setAttribute("aria-sort", direction === "down" ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  }
  $("#reset").hidden = Object.keys(DEFAULTS).every(name => name === "theme" || state[name] === DEFAULTS[name]);
  filterFigures();
  if (state.theme) document.documentElement.dataset.theme = state.theme;
  else delete document.documentElement.dataset.theme;
}

// Figures: marks and panels of a precision.

function filterFigures() {
  const hidden = boxes.filter(({ box }) => !chosen().includes(box.value)).map(({ tint }) => tint);
  for (const figure of $$("figure")) {
    for (const part of $$(".chart [class*=p-]", figure)) part.toggleAttribute("hidden", hidden.some(name => part.classList.contains(name)));
    const panels = $$(".chart[data-precision]", figure);
    for (const panel of panels) panel.toggleAttribute("hidden", !chosen().includes(panel.dataset.precision));
    figure.hidden = panels.length > 0 && panels.every(panel => panel.hasAttribute("hidden"));
  }
}

// The fragment.

function read() {
  const words = new URLSearchParams(location.hash.slice(1));
  state = { ...DEFAULTS };
  for (const name of Object.keys(DEFAULTS)) if (words.has(name)) state[name] = words.get(name);
  if (!heads.some(head => head.dataset.column === state.sort.split(":")[0])) state.sort = "";
  if (!["light", "dark"].includes(state.theme)) state.theme = "";
  for (const { box } of boxes) box.checked = chosen().includes(box.value);
}
function set(changes) {
  Object.assign(state, changes);
  const words = new URLSearchParams(Object.entries(state).filter(([name, value]) => value !== DEFAULTS[name]));
  history.replaceState(null, "", words.size ? `#${words}` : location.pathname + location.search);
  read();
  draw();
}

// Listeners. Text only ever goes into text nodes, so names from files stay text.

function button(attributes, ...children) {
  const made = document.createElement("button");
  for (const [name, value] of Object.entries({ type: "button", ...attributes })) made.setAttribute(name, value);
  made.append(...children);
  return made;
}
for (const { row, detail } of lines) {
  const name = $(".device bdi", row), unfold = button({ class: "unfold", "aria-expanded": "false" });
  name.replaceWith(unfold);
  unfold.append(name);
  row.addEventListener("click", event => {
    if (getSelection().toString() && !event.target.closest("button")) return;
    detail.hidden = unfold.getAttribute("aria-expanded") === "true";
    unfold.setAttribute("aria-expanded", !detail.hidden);  // nothing is drawn anew: a row that moves loses the focus
  });
}
for (const head of heads) {
  const sort = button({}, ...head.childNodes), own = head.dataset.column;
  head.append(sort);
  sort.addEventListener("click", () => {
    const [column, direction] = state.sort.split(":");
    const [first, second] = ["device", "use", "accuracy"].includes(own) ? ["up", "down"] : ["down", "up"];
    set({ sort: column !== own ? `${own}:${first}` : direction === first ? `${own}:${second}` : "" });
  });
}
form.addEventListener("submit", event => event.preventDefault());
form.addEventListener("change", () => {
  const on = boxes.filter(({ box }) => box.checked).map(({ box }) => box.value);
  set({ precision: on.length === boxes.length ? "" : on.join(",") || "none" });
});
$("#reset").addEventListener("click", () => set({ ...DEFAULTS, theme: state.theme }));
$("#theme").hidden = false;
$("#theme").addEventListener("click", () => {
  const shown = state.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  set({ theme: shown === "dark" ? "light" : "dark" });
});
addEventListener("beforeprint", () => { for (const one of $$(".paper")) one.open = true; });
addEventListener("hashchange", () => { if (!document.getElementById(location.hash.slice(1))) { read(); draw(); } });

form.hidden = false;
read();
draw();
