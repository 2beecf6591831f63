"use strict";
// One opened test: facts, charts, stacks. All texts of a test are inserted as text, never as HTML.

const data = JSON.parse(document.getElementById("data").textContent);
const statuses = Object.fromEntries(data.statuses.map((status) => [status.name, status]));
const toneOf = (status) => `--tone: var(--${status.tone}, var(--failed))`;
const isBad = (test) => statuses[test.status].bad;
const find = (id) => document.getElementById(id);

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

// formatting numbers

function sizeText(size) {
  if (size === null || size === undefined) return "";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let step = 0, value = size;
  while (Math.abs(value) >= 1024 && step < units.length - 1) { value /= 1024; step += 1; }
  return `${step ? value.toFixed(1) : +value.toPrecision(4)} ${units[step]}`;
}

function timeText(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 1e-3) return `${+(seconds * 1e6).toPrecision(3)} µs`;
  if (seconds < 0.0995) return `${+(seconds * 1e3).toPrecision(3)} ms`;
  if (seconds < 99.5) return `${+seconds.toPrecision(3)} s`;
  const minutes = Math.round(seconds / 60);
  const hours = `${Math.floor(minutes / 60)} h`;
  return minutes < 60 ? `${minutes} min` : minutes % 60 ? `${hours} ${minutes % 60} min` : hours;
}

const numberText = (value) => (Math.abs(value) >= 100 ? Math.round(value) : +value.toPrecision(3)).toLocaleString("en");

function amountText(value, unit) {
  if (value === null || value === undefined) return "";
  return unit === "bytes" ? sizeText(value) : unit === "seconds" ? timeText(value) : numberText(value);
}

const unitOf = (name) => data.signals[name]?.unit ?? "count";
const slopeText = (entry, slope) => `${amountText(slope, unitOf(entry.signal))} per ${entry.per}`;
const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
const addressOf = (test) => (test.at ? `${test.id} @ ${test.at}` : test.id);
const momentText = (seconds) => new Date(seconds * 1000).toLocaleString();

// one opened test

const numberCell = (text) => make("td", { class: "number" }, text);

function tableOf(head, isNumber, rows) {
  return make("div", { class: "scroll", tabindex: "0" }, make("table", {},
    make("thead", {}, make("tr", {}, ...head.map((name, column) =>
      make("th", { scope: "col", class: isNumber(column) ? "number" : null }, name)))),
    make("tbody", {}, ...rows)));
}

function factChips(test) {
  const detail = test.detail ?? {};
  const origin = data.origins[test.origin];
  const facts = {
    ...detail.facts, duration: timeText(test.duration), "peak memory": sizeText(test.peak),
    laps: test.laps ? numberText(test.laps) : "", backend: detail.backend, seed: detail.seed, pid: detail.pid,
    host: origin.host, worker: origin.worker === "main" ? "" : origin.worker,
    run: data.runs.length > 1 ? data.runs[test.run].source : "",
    ...Object.fromEntries(Object.entries(detail.phases ?? {}).map(([phase, seconds]) => [phase, timeText(seconds)])),
  };
  if (facts.class === facts.signal || facts.class === "signal") delete facts.class;
  if (facts.limit === "0") delete facts.limit;
  delete facts.stage;  // both are shown in full below
  delete facts.signature;
  const shown = Object.entries(facts).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return make("ul", { class: "chips", "aria-label": "Facts" },
    ...shown.map(([name, value]) => make("li", {}, make("b", {}, name.replaceAll("_", " ")), String(value))));
}

function command(text) {
  const button = make("button", { type: "button" }, "Copy");
  const shown = make("pre", { tabindex: "0" }, text);
  button.addEventListener("click", async () => {
    button.textContent = (await copy(text, shown)) ? "Copied" : "Press Ctrl+C";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  return make("div", { class: "command" }, shown, button);
}

async function copy(text, shown) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    getSelection().selectAllChildren(shown);
    return document.execCommand("copy");
  }
}

// The address of a test on this page, to be sent to somebody.
function linkTo(test) {
  const link = make("a", { class: "link", href: `#${encodeURIComponent(addressOf(test))}` }, "Link to this test");
  link.addEventListener("click", () => copy(link.href, link));
  return link;
}

function stages(names, died) {
  const last = names.length - 1;
  return make("ol", { class: "stages" },
    ...names.map((name, number) => make("li", died && number === last ? { class: "died" } : {}, name)));
}

function signalTable(test) {
  const { columns, judged, still } = test.course;
  const rows = Object.entries(columns).map(([name, values]) => {
    const known = values.filter((value) => value !== null);
    const entry = judged.find((candidate) => candidate.signal === name);
    const text = (value) => amountText(value, unitOf(name));
    const limits = entry ? [entry.slope_limit ? slopeText(entry, entry.slope_limit) : "", text(entry.most)] : [];
    const cells = [
      known[0], known.at(-1), known.reduce((low, value) => Math.min(low, value)),
      known.reduce((high, value) => Math.max(high, value)),
    ].map((value) => numberCell(text(value)));
    return make("tr", {}, make("th", { scope: "row" }, data.signals[name].title), ...cells,
      numberCell(entry?.slope ? slopeText(entry, entry.slope) : ""), numberCell(limits.filter(Boolean).join(", ")),
      make("td", { class: entry?.leaks ? "leaks" : "" },
        entry ? entry.state + (entry.reason ? `: ${entry.reason}` : "") : ""));
  });
  const head = ["signal", "first", "last", "lowest", "highest", "slope", "limit", "judged"];
  const unmoved = Object.entries(still).map(([name, value]) =>
    `${data.signals[name].title} ${amountText(value, unitOf(name))}`);
  const table = tableOf(head, (column) => column && column < 7, rows);
  return make("details", {}, make("summary", {}, "The numbers"), table,
    unmoved.length ? make("p", { class: "quiet" }, `Never moved: ${unmoved.join(", ")}.`) : null);
}

const drawn = new WeakMap();
const nearby = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) drawn.get(entry.target)?.();
}, { rootMargin: "300px" });

function figure(course, names, axis) {
  const titles = names.map((name) => data.signals[name].title).join(", ");
  const place = make("div", {
    class: "chart", role: "img", "aria-label": `Charts of ${titles} by lap`, style: "min-height: 14rem",
  });
  const draw = (more = {}) => {
    place.style.minHeight = "";
    charts.draw(place, { course, names, signals: data.signals, axis: axis.name, slopeText, ...more });
  };
  drawn.set(place, draw);
  nearby.observe(place);
  return place;
}

function chart(test) {
  const { course } = test;
  const axis = { name: course.lap.at(-1) > course.lap[0] ? "lap" : "seconds" };
  const moved = Object.keys(course.columns).filter((name) => !course.flat.includes(name));
  const figures = [moved, course.flat].filter((names) => names.length).map((names) => figure(course, names, axis));
  const buttons = [["lap", "by lap"], ["seconds", "by time"]].map(([name, text]) => {
    const button = make("button", { type: "button", "aria-pressed": String(axis.name === name) }, text);
    button.addEventListener("click", () => {
      axis.name = name;
      for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
      for (const place of figures) if (place.childElementCount) drawn.get(place)();
    });
    return button;
  });
  const counted = `${numberText(course.samples)} samples`;
  const flat = course.flat.length === 1 ? "1 signal" : `${course.flat.length} signals`;
  return [make("div", { class: "axis", role: "group", "aria-label": "Chart axis" }, ...buttons,
    make("span", { class: "quiet" }, `${counted}. Drag to zoom, double-click to zoom out.`)),
  moved.length ? figures[0] : null,
  course.flat.length ? make("details", {}, make("summary", {}, `${flat} that stayed flat`), figures.at(-1)) : null, signalTable(test)];
}

const titled = (title, ...content) => [make("h3", {}, title), ...content];
const folded = (title, ...content) => make("details", {}, make("summary", {}, title), ...content);
const block = (text) => make("pre", { tabindex: "0" }, text);

// Prose is shown as prose; what is set in columns or indented stays as it is.
function paragraphs(text) {
  return text.split(/\n{2,}/).flatMap((part) => {
    const lines = part.split("\n");
    const items = lines.slice(1).filter((line) => line.startsWith("  - "));
    if (items.length && items.length === lines.length - 1) {
      return [make("p", {}, lines[0]), make("ul", {}, ...items.map((item) => make("li", {}, item.slice(4))))];
    }
    return / {2}/.test(part) ? [block(part)] : lines.map((line) => make("p", {}, line));
  });
}

function soakTable({ done, rows }) {
  const shown = rows.map(([name, value]) =>
    make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, value)));
  return [make("progress", { max: "1", value: done, "aria-label": "How much of the soak was done" }),
    make("div", { class: "scroll" }, make("table", {}, make("tbody", {}, ...shown)))];
}

const PROSE = ["", "Diagnosis", "who holds it", "Wait-for cycle"];

// Why it failed comes first, then what shows it, then the rest, folded.
function body(test) {
  const detail = test.detail ?? {};
  const causes = (detail.causes ?? []).filter(([title]) => !(title === "Stages" && detail.stages));
  const shown = ([title, text]) => (PROSE.includes(title) ? paragraphs(text) : [block(text)]);
  const spoken = causes.filter(([title]) => !title).flatMap(shown);
  const ordinary = test.headline && !isBad(test) ? [make("p", { class: "what" }, test.headline)] : [];
  return make("div", { class: "body" },
    ...ordinary, ...(spoken.length ? [make("div", { class: "what" }, ...spoken)] : []),
    ...(detail.stages ? titled("Stages", stages(detail.stages, isBad(test))) : []),
    ...causes.filter(([title]) => title).flatMap(([title, text]) => titled(capital(title), ...shown([title, text]))),
    ...(detail.report ? titled("Failure", block(detail.report)) : []),
    ...(detail.reproduce ? titled("Reproduce", command(detail.reproduce)) : []),
    ...(test.soak ? titled("Soak", ...soakTable(test.soak)) : []),
    ...(test.course ? titled("Charts", ...chart(test)) : []),
    ...(detail.leftovers ? titled("Processes left running", block(detail.leftovers.join("\n"))) : []),
    ...(detail.earlier ? titled("Earlier attempts", make("ol", {}, ...detail.earlier.map((attempt) =>
      make("li", {}, `${attempt.status}: ${attempt.headline} (${timeText(attempt.duration)})`)))) : []),
    ...(detail.output ?? []).map(([title, text]) => folded(title, block(text))),
    ...(detail.evidence ?? []).map(([title, text]) => folded(capital(title), block(text))),
    ...titled("Facts", factChips(test)),
    ...(detail.facts?.signature ? [make("p", { class: "quiet" }, "Signature ",
      make("code", {}, detail.facts.signature))] : []),
    make("p", {}, linkTo(test)));
}
