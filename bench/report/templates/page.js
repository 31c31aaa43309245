"use strict";
// The control bar, the answer grid's other views, sorting, hovering and the detail of a line.
// Without this script the advised view stands as it was written. State lives in the URL's fragment.

const $ = (selector, within = document) => within.querySelector(selector);
const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];
const data = JSON.parse($("#data").textContent);
const valueOf = (column, at) => (column.words ? column.words[column.at[at]] : column.rows ? column.values[column.rows.indexOf(at)] : column[at]) ?? null;
const rows = Array.from({ length: data.length }, (_, at) =>
  Object.fromEntries(Object.entries(data.columns).map(([name, column]) => [name, valueOf(column, at)])));
const form = $("#controls"), table = $("#answers"), tip = $("#tip");
const DEFAULTS = { metric: "speed", model: "", device: "", batch: "", baseline: data.baseline, precision: "", sort: "", over: "", theme: "" };
const METRICS = { // value of a row over its baseline: above 1 is better, as the strips show it
  speed: { of: row => row.samples_per_s, better: 1, title: "speedup", ends: ["speedup", "speedup_low", "speedup_high"] },
  memory: { of: row => row.peak_memory_bytes, better: -1, title: "peak memory" },
  energy: { of: row => row.energy_j_per_step, better: -1, title: "energy a step" },
  epoch: { of: row => row.epoch_s, better: -1, title: "epoch speedup", ends: ["epoch_speedup", "epoch_speedup_low", "epoch_speedup_high"] },
};
const SVG = "http://www.w3.org/2000/svg";
let state = { ...DEFAULTS };

// Text, as the written page has it.

const known = value => value !== null && value !== undefined;
function number(value, digits = 4) {
  if (!known(value)) return "–";
  const size = value ? Math.floor(Math.log10(Math.abs(value))) : 0, decimals = Math.max(0, digits - 1 - size);
  return value.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals }).replace("-", "−");
}
function change(ratio) {
  if (!known(ratio)) return "–";
  const percent = 100 * (ratio - 1), text = percent.toFixed(Math.abs(percent) >= 9.5 ? 0 : 1);
  return `${percent < 0 ? "" : "+"}${text} %`.replace("-", "−");
}
const signed = (value, digits = 2) => `${value.toFixed(digits) < 0 ? "−" : "+"}${Math.abs(value).toFixed(digits)}`;
const interval = one => known(one.low) ? ` [${number(one.low, 3)}, ${number(one.high, 3)}]` : "";
const mib = bytes => known(bytes) ? `${number(bytes / 2 ** 20)} MiB` : "–";
const className = name => "p-" + name.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-+|-+$/g, "");

// Elements. Text only ever goes into text nodes and attributes, so names from files stay text.

function element(name, attributes = {}, ...children) {
  const made = name.startsWith("svg:") ? document.createElementNS(SVG, name.slice(4)) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) if (value !== null && value !== false) made.setAttribute(key, value);
  made.append(...children.filter(child => child !== null && child !== ""));
  return made;
}

// Figures of one cell: a row over the row of the baseline.

const cellOf = (workload, where, batch) => rows.filter(row => row.workload === workload && row.where === where && row.batch_size === batch);
function over(row, base, metric) {
  const how = METRICS[metric];
  if (!base || !known(how.of(row)) || !known(how.of(base))) return null;
  if (metric === "energy" && row.energy_source !== base.energy_source) return null;
  if (row === base) return { center: 1, low: null, high: null };
  if (how.ends && base.precision === data.baseline && known(row[how.ends[0]])) {
    const [center, low, high] = how.ends.map(name => row[name]);
    return { center, low, high };
  }
  if (how.ends && row.precision === data.baseline && known(base[how.ends[0]])) {
    const [center, low, high] = how.ends.map(name => base[name]);
    return { center: 1 / center, low: known(high) ? 1 / high : null, high: known(low) ? 1 / low : null };
  }
  if (metric === "speed") {
    const [one, other] = [rows.indexOf(row), rows.indexOf(base)];
    const pair = data.pairs.find(([a, b]) => a === one && b === other);
    if (pair) return { center: pair[2], low: pair[3], high: pair[4] };
    const back = data.pairs.find(([a, b]) => a === other && b === one);
    if (back) return { center: 1 / back[2], low: known(back[4]) ? 1 / back[4] : null, high: known(back[3]) ? 1 / back[3] : null };
  }
  const ratio = how.of(row) / how.of(base);
  return { center: metric === "epoch" ? 1 / ratio : ratio, low: null, high: null };
}

// Lines of the grid: each knows its written cells, and the figures of the view that is shown.

const lines = $$(".line", table).map((row, order) => ({
  row, order, group: row.parentElement, workload: row.dataset.workload, where: row.dataset.where,
  answer: data.answers[order], written: $$(":scope > td", row).map(cell => [...cell.childNodes]),
}));
const columns = $$("thead th", table).slice(1).map(head => head.dataset.column);
const advised = () => ["batch", "baseline", "precision"].every(name => state[name] === DEFAULTS[name]);
const chosen = () => state.precision ? state.precision.split(",") : data.precisions;

function look(line) {
  const { workload, where, answer } = line;
  const batch = state.batch ? Number(state.batch) : answer.batch_size;
  const cell = cellOf(workload, where, batch), base = cell.find(row => row.precision === state.baseline);
  const marks = cell.filter(row => row !== base && chosen().includes(row.precision))
    .map(row => ({ row, value: over(row, base, state.metric) })).filter(mark => mark.value);
  const better = METRICS[state.metric].better;
  if (!advised()) return { batch, base, cell, marks, best: [...marks].sort((a, b) => better * (b.value.center - a.value.center))[0] ?? null };
  const row = cell.find(own => own.precision === answer.use), value = row ? over(row, base, "speed") : null;
  return { batch, base, cell, marks, best: value ? { row, value } : null };
}

function says({ row, value }) {
  const size = METRICS[state.metric].ends ? `${number(value.center, 3)}×${interval(value)}` : change(value.center);
  return `${row.precision}: ${size} · ${number(row.step_ms, 3)} ms a step · ${number(row.samples_per_s)} samples/s · ${mib(row.peak_memory_bytes)}`;
}

function strip(marks, reach) {
  const width = 130, height = 6 * Math.max(marks.length, 2) + 6, x = value => Math.min(value / reach, 1) * width;
  if (!marks.length) return "";
  const drawn = marks.map((mark, index) => {
    const { center, low, high } = mark.value, y = 6 * (index + 1);
    return element("svg:g", { class: className(mark.row.precision) },
      element("svg:line", { class: "bar", x1: x(1), x2: x(center), y1: y, y2: y }),
      known(low) ? element("svg:line", { class: "interval", x1: x(low), x2: x(high), y1: y, y2: y }) : "",
      element("svg:circle", { cx: x(center), cy: y, r: 2.6 }));
  });
  return element("svg:svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": marks.map(says).join("; ") },
    element("svg:line", { class: "one", x1: x(1), x2: x(1), y1: 0, y2: height }), ...drawn);
}

function cells(view, reach) {
  const { best, base, batch } = view, row = best?.row;
  const against = metric => row ? over(row, base, metric) : null;
  const epoch = against("epoch"), size = METRICS[state.metric].ends;
  const quality = best && state.baseline === data.baseline ? qualityChange(row) : null;
  return {
    use: best ? element("span", { class: `chip shown ${className(row.precision)}` }, element("bdi", {}, row.precision)) : status(view),
    faster: best ? element("strong", {}, size ? `${number(best.value.center, 3)}×` : change(best.value.center)) : "–",
    strip: strip(view.marks, reach),
    memory: change(against("memory")?.center), energy: change(against("energy")?.center),
    epoch: epoch ? `${number(base.epoch_s, 3)} → ${number(row.epoch_s, 3)} s` : "–",
    accuracy: quality ? `${quality.text}, ${row.accuracy_verdict}` : "–",
    batch: String(batch),
  };
}

// The change from fp32 in accuracy, or in the loss of tokens, of which less is a gain.

function qualityChange(row) {
  const points = row.accuracy_change_points, nats = row.loss_change_nats;
  if (known(points)) return { gain: points, text: `${signed(points)} pt` };
  return known(nats) ? { gain: -nats, text: `${signed(nats, 4)} nats` } : null;
}
function status({ cell, base }) {
  if (!cell.length) return "not measured";
  if (!base || !known(base.step_ms)) return `${state.baseline}: ${base?.speed_status ?? base?.memory_status ?? "not measured"}`;
  return "nothing to compare";
}

// What a column is sorted by.

function key(line, column) {
  const { best, base, batch } = line.view;
  if (column === "device") return line.order;
  if (column === "use") return best ? best.row.precision : line.answer.use ?? "";
  if (column === "batch") return batch;
  if (column === "accuracy") return best ? qualityChange(best.row)?.gain ?? null : null;
  if (column === "faster" || column === "strip") return best ? (advised() ? 1 : METRICS[state.metric].better) * best.value.center : null;
  return best ? over(best.row, base, column)?.center ?? null : null;
}

function draw() {
  const usual = advised();
  for (const line of lines) line.view = look(line);
  const ends = lines.flatMap(line => line.view.marks.map(mark => Math.min(mark.value.high ?? mark.value.center, 2 * mark.value.center)));
  const reach = 1.05 * Math.max(1.25, ...ends);
  for (const line of lines) {
    const made = usual ? { strip: strip(line.view.marks, reach) } : cells(line.view, reach);
    $$(":scope > td", line.row).forEach((cell, at) => {
      const kept = usual && columns[at] !== "strip";
      cell.replaceChildren(...(kept ? line.written[at] : [made[columns[at]]]));
      cell.classList.toggle("unknown", cell.textContent.trim() === "–");
    });
    line.row.hidden = state.model !== "" && line.workload !== state.model || state.device !== "" && line.where !== state.device;
  }
  const [column, direction] = state.sort.split(":");
  for (const group of new Set(lines.map(line => line.group))) {
    const own = lines.filter(line => line.group === group);
    group.hidden = own.every(line => line.row.hidden);
    own.sort((a, b) => (column ? compare(key(a, column), key(b, column), direction) : 0) || a.order - b.order);
    group.append(...own.flatMap(line => line.detail ? [line.row, line.detail] : [line.row]));
    for (const line of own) if (line.detail) line.detail.hidden = line.row.hidden;
  }
  for (const head of $$("thead th", table)) {
    if (head.dataset.column === column) head.setAttribute("aria-sort", direction === "down" ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  }
  const { title, ends: measured } = METRICS[state.metric];
  $("#strip-title").textContent = `${title} over ${state.baseline}`;
  $("#use-title").textContent = usual ? "use" : "best shown";
  $("#faster-title").textContent = usual || measured ? "faster" : title;
  $("#view").textContent = usual ? "" : `Not the advice: the best of what is shown${state.batch ? ` at batch ${state.batch}` : ""}, over ${state.baseline}.`;
  $("#reset").hidden = Object.keys(DEFAULTS).every(name => name === "theme" || state[name] === DEFAULTS[name]);
  maps.forEach(drawMap);
  filterFigures();
  if (state.theme) document.documentElement.dataset.theme = state.theme;
  else delete document.documentElement.dataset.theme;
}
function compare(one, other, direction) {
  if (!known(one) || !known(other)) return known(other) - known(one);
  const less = typeof one === "string" ? one.localeCompare(other) : one - other;
  return direction === "down" ? -less : less;
}

// Figures: marks of a device or a precision, panels of a precision, and figures of a model or a device.

function filterFigures() {
  const tints = Object.entries(data.devices).filter(([where]) => state.device && where !== state.device).map(([, tint]) => tint);
  const hidden = [...tints, ...data.precisions.filter(name => !chosen().includes(name)).map(className)];
  document.documentElement.classList.toggle("picked", state.device !== "");
  for (const figure of $$("figure")) {
    for (const part of $$(".chart [class*=p-], .legend > *", figure)) part.toggleAttribute("hidden", hidden.some(name => part.classList.contains(name)));
    const panels = $$(".chart[data-precision]", figure);
    for (const panel of panels) panel.toggleAttribute("hidden", !chosen().includes(panel.dataset.precision));
    const { workload, where } = figure.dataset, other = (chosen, own) => chosen && own && chosen !== own;
    figure.hidden = other(state.model, workload) || other(state.device, where) || panels.length > 0 && panels.every(panel => panel.hasAttribute("hidden"));
  }
}

// The detail of a line: every batch size and precision that was measured there.

const DETAIL = {
  batch: row => String(row.batch_size), precision: row => row.precision, status: row => [row.speed_status ?? row.memory_status].find(status => status !== "ok") ?? "–",
  "step (ms)": row => number(row.step_ms), "samples/s": row => number(row.samples_per_s),
  "speedup [95 %]": row => known(row.speedup) ? number(row.speedup) + interval({ low: row.speedup_low, high: row.speedup_high }) : "–",
  verdict: row => row.speed_verdict ?? "–", "peak memory": row => mib(row.peak_memory_bytes),
  "energy/step (J)": row => number(row.energy_j_per_step), "epoch (s)": row => number(row.epoch_s),
  "accuracy (%)": row => known(row.accuracy_pct) ? row.accuracy_pct.toFixed(2) : "–", perplexity: row => number(row.perplexity),
  "above the entropy (nats)": row => known(row.loss_above_entropy_nats) ? signed(row.loss_above_entropy_nats, 4) : "–",
  "products in": row => row.compute_dtypes || "–", "% of ceiling": row => number(row.pct_of_peak, 3), rounds: row => known(row.rounds) ? String(row.rounds) : "–",
};
function toggle(line) {
  const button = $("button", line.row);
  if (line.detail) { line.detail.remove(); line.detail = null; button.setAttribute("aria-expanded", "false"); return; }
  const own = rows.filter(row => row.workload === line.workload && row.where === line.where && row.speed_status !== "unsupported");
  const used = Object.entries(DETAIL).filter(([, write]) => own.some(row => write(row) !== "–"));
  const head = element("tr", {}, ...used.map(([name]) => element("th", { scope: "col" }, name)));
  const body = own.map(row => element("tr", { class: className(row.precision) },
    ...used.map(([, write]) => element("td", {}, element("bdi", {}, write(row))))));
  const sentence = $$("#sentences li")[line.order]?.textContent ?? "";
  const wide = element("div", { class: "wide", tabindex: "0", role: "region", "aria-label": `All figures of ${line.workload} on ${line.where}` },
    element("table", {}, element("caption", {}, "Every batch size and precision"), element("thead", {}, head), element("tbody", {}, ...body)));
  line.detail = element("tr", { class: "detail" },
    element("td", { colspan: String(columns.length + 1) }, element("p", {}, element("bdi", {}, sentence)), wide));
  line.row.after(line.detail);
  button.setAttribute("aria-expanded", "true");
}

// Heat maps of setups: a column becomes the baseline, of which a table tells the intervals.

const figureOf = name => $$("figure").find(one => one.dataset.name === name);
const maps = Object.entries(data.matrices).filter(([name]) => figureOf(name)).map(([name, matrix]) => {
  const figure = figureOf(name);
  const select = element("select", {}, element("option", { value: "" }, "none"),
    ...matrix.names.map((setup, at) => element("option", { value: `${name}:${at + 1}` }, `${at + 1}. ${setup}`)));
  const label = element("label", { class: "soft" }, "baseline ", select), cells = $(".cells", figure);
  select.addEventListener("change", () => set({ over: select.value }));
  cells.addEventListener("click", event => {
    const { left, width } = cells.getBoundingClientRect(), own = `${name}:${1 + Math.floor(matrix.names.length * (event.clientX - left) / width)}`;
    set({ over: state.over === own ? "" : own });
  });
  $("figcaption", figure).after(label);
  return { name, matrix, figure, select, cells, shown: [] };
});
function ratio({ names, over }, one, other) {
  if (one === other) return { center: 1, low: null, high: null };
  const [first, second] = [Math.min(one, other), Math.max(one, other)];
  const at = 3 * (first * names.length - first * (first + 1) / 2 + second - first - 1), [center, low, high] = over.slice(at, at + 3);
  return one < other ? { center, low, high } : { center: 1 / center, low: known(high) ? 1 / high : null, high: known(low) ? 1 / low : null };
}
function drawMap({ name, matrix, select, cells, shown }) {
  const at = state.over.startsWith(`${name}:`) ? Number(state.over.slice(name.length + 1)) - 1 : -1, count = matrix.names.length;
  for (const old of shown.splice(0)) old.remove();
  select.value = matrix.names[at] === undefined ? "" : state.over;
  if (!select.value) return;
  const [left, width] = ["x", "width"].map(key => Number(cells.getAttribute(key)));
  const picked = element("svg:rect", { class: "picked", x: left + at * width / count, y: cells.getAttribute("y"), width: width / count, height: cells.getAttribute("height") });
  const body = matrix.names.map((setup, row) => {
    const value = ratio(matrix, row, at), unequal = matrix.batch_sizes[row] === matrix.batch_sizes[at] ? "" : "*";
    return element("tr", {}, element("td", {}, element("bdi", {}, `${row + 1}. ${setup}`)),
      element("td", { class: "n" }, number(value.center, 3) + unequal), element("td", {}, interval(value).trim() || "–"));
  });
  const heads = ["setup", "times as fast", "95 % interval"].map(text => element("th", { scope: "col" }, text));
  const table = element("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "over the baseline" }, element("table", {},
    element("caption", {}, "Over ", element("bdi", {}, matrix.names[at])), element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...body)));
  cells.before(picked);
  cells.closest(".chart").after(table);
  shown.push(picked, table);
}

// The fragment.

function read() {
  const words = new URLSearchParams(location.hash.slice(1));
  state = { ...DEFAULTS };
  for (const name of Object.keys(DEFAULTS)) if (words.has(name)) state[name] = words.get(name);
  if (!["device", ...columns].includes(state.sort.split(":")[0])) state.sort = "";
  if (!["light", "dark"].includes(state.theme)) state.theme = "";
  for (const select of $$("select[form]")) {
    if (![...select.options].some(option => option.value === state[select.name])) state[select.name] = DEFAULTS[select.name];
    select.value = state[select.name];
  }
  if (!maps.some(map => [...map.select.options].some(option => option.value === state.over))) state.over = "";
  for (const box of $$("input", form)) box.checked = chosen().includes(box.value);
}
function write() {
  const words = new URLSearchParams(Object.entries(state).filter(([name, value]) => value !== DEFAULTS[name]));
  history.replaceState(null, "", words.size ? `#${words}` : location.pathname + location.search);
}
function set(changes) { Object.assign(state, changes); write(); read(); draw(); }

// Listeners.

for (const line of lines) {
  const name = $(".device bdi", line.row), button = element("button", { type: "button", class: "unfold", "aria-expanded": "false" });
  name.replaceWith(button);
  button.append(name);
  line.row.addEventListener("click", event => { if (!getSelection().toString() || event.target.closest("button")) toggle(line); });
}
for (const head of $$("thead th", table)) {
  const button = element("button", { type: "button" }, ...head.childNodes);
  head.append(button);
  button.addEventListener("click", () => {
    const [column, direction] = state.sort.split(":"), own = head.dataset.column;
    const text = own === "device" || own === "use", first = text ? "up" : "down", second = text ? "down" : "up";
    set({ sort: column !== own ? `${own}:${first}` : direction === first ? `${own}:${second}` : "" });
  });
}
form.addEventListener("submit", event => event.preventDefault());
addEventListener("change", event => {
  const { name, value } = event.target;
  if (event.target.form !== form) return;
  if (name !== "precision") return set({ [name]: value });
  const on = $$("input", form).filter(box => box.checked).map(box => box.value);
  set({ precision: on.length === data.precisions.length ? "" : on.join(",") || "none" });
});
$("#reset").addEventListener("click", () => set({ ...DEFAULTS, theme: state.theme }));
$("#theme").hidden = false;
$("#theme").addEventListener("click", () => {
  const shown = state.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  set({ theme: shown === "dark" ? "light" : "dark" });
});
table.addEventListener("pointermove", event => {
  const shown = event.target.closest("td.strip")?.querySelector("svg");
  tip.hidden = !shown;
  if (!shown) return;
  tip.replaceChildren(...shown.getAttribute("aria-label").split("; ").map(text => element("div", {}, element("bdi", {}, text))));
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8)}px`;
});
table.addEventListener("pointerleave", () => { tip.hidden = true; });
addEventListener("beforeprint", () => { for (const one of $$(".paper")) one.open = true; });
addEventListener("hashchange", () => { if (!document.getElementById(location.hash.slice(1))) { read(); draw(); } });

for (const controls of [form, $("#view-of")]) controls.hidden = false;
read();
draw();
