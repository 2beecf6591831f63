"use strict";
// One figure per test: memory, every counter that changed, and lap time, above one another with one axis.
// Plotly is kept as text until the first chart is drawn, so that a page of 10,000 tests opens quickly.

const charts = (() => {
  const LIGHT = {
    ink: "#1b2330", quiet: "#5b6675", line: "#dde2e9", card: "#ffffff", shade: "rgba(90,110,140,.13)",
    leak: "#c2182b", limit: "#7b2fbf",
    series: ["#1f5fd0", "#0f8a7a", "#b45309", "#8a3fc0", "#4d7c0f", "#be185d", "#0e7490", "#6b7280"],
  };
  const DARK = {
    ink: "#e6eaf1", quiet: "#9aa6b6", line: "#2c3542", card: "#181e28", shade: "rgba(150,175,210,.14)",
    leak: "#ff7b85", limit: "#cf9bff",
    series: ["#7cb0ff", "#4fd1bd", "#ffb35c", "#cf9bff", "#a3d65c", "#ff8fc4", "#5fd0e8", "#a9b6c8"],
  };
  const MEMORY_ORDER = ["rss", "uss", "malloc", "mappings", "torch", "cuda", "cuda_driver", "workers", "peak_memory"];
  const MOST_COUNTERS = 12;
  const MEMORY_HEIGHT = 250, COUNTER_HEIGHT = 110, GAP = 36, TOP = 62, BOTTOM = 46;
  const NARROW = 560;

  const SCALES = {
    bytes: [[1, "B"], [1024, "KiB"], [1024 ** 2, "MiB"], [1024 ** 3, "GiB"]],
    seconds: [[1e-6, "µs"], [1e-3, "ms"], [1, "s"], [60, "min"], [3600, "h"]],
    count: [[1, ""]],
  };

  function scaleFor(unit, values) {
    const most = values.reduce((top, value) => Math.max(top, Math.abs(value ?? 0)), 0);
    const fitting = SCALES[unit].filter(([size]) => most >= size * 1.5);
    const [size, name] = fitting.at(-1) ?? SCALES[unit][0];
    return { size, name, apply: (series) => series.map((value) => (value === null ? null : value / size)) };
  }

  function load() {
    if (!window.Plotly) {
      const script = document.createElement("script");
      script.textContent = document.getElementById("plotly").textContent;
      document.head.append(script);
    }
    return window.Plotly;
  }

  function panels(course, signals) {
    const names = Object.keys(course.columns);
    const unitOf = (name) => signals[name]?.unit ?? "count";
    const memory = names.filter((name) => unitOf(name) === "bytes");
    memory.sort((one, other) => rank(MEMORY_ORDER, one) - rank(MEMORY_ORDER, other));
    const leaks = course.judged.filter((entry) => entry.leaks).map((entry) => entry.signal);
    const judged = [...leaks, ...course.judged.map((entry) => entry.signal)];
    const counters = names.filter((name) => unitOf(name) === "count");
    counters.sort((one, other) => rank(judged, one) - rank(judged, other));  // those that leak first
    const times = names.filter((name) => unitOf(name) === "seconds");
    const shown = [...counters.slice(0, MOST_COUNTERS), ...times];
    return [
      ...(memory.length ? [{ title: "Memory", names: memory, unit: "bytes", height: MEMORY_HEIGHT }] : []),
      ...shown.map((name) => ({
        title: signals[name]?.title ?? name, names: [name], unit: unitOf(name), height: COUNTER_HEIGHT,
      })),
    ];
  }

  // Plotly interprets some HTML in its texts; names that a test chose must be shown as they are.
  const plain = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");

  const rank = (order, name) => (order.includes(name) ? order.indexOf(name) : order.length);

  function along(course, axis) {
    if (axis === "lap") return { values: course.lap, title: "lap" };
    const scale = scaleFor("seconds", course.seconds);
    return { values: scale.apply(course.seconds), title: `elapsed (${scale.name})` };
  }

  function line(x, y, yaxis, name, look, more = {}) {
    return { type: "scatter", mode: "lines", x, y, yaxis, name, line: look, connectgaps: true, ...more };
  }

  // How one signal is drawn: *plot* holds its axes, scale, colours, label and place in the legend.
  function signalTraces(name, plot) {
    const { course, x, scale, alone, narrow } = plot;
    const values = scale.apply(course.columns[name]);
    const traces = (isThinned(course) ? band : plainLine)(x.values, values, plot);
    const entry = course.judged.find((judged) => judged.signal === name);
    return entry ? [...traces, ...promises(entry, plot, { showlegend: !alone && !narrow })] : traces;
  }

  function plainLine(x, y, { yaxis, label, colour, alone }) {
    const few = x.length <= 60 ? { mode: "lines+markers", marker: { size: 4 } } : {};
    return [line(x, y, yaxis, label, { color: colour, width: 1.8 }, { showlegend: !alone, ...few })];
  }

  const isThinned = (course) => course.samples > 1.5 * course.lap.length;

  // Two rows hold the lowest and the highest of a group of samples: the space between them is filled.
  function band(x, y, { yaxis, label, colour, alone }) {
    const pairs = x.map((_, row) => row).filter((row) => row % 2 === 0 && row + 1 < x.length && y[row] !== null);
    const middle = pairs.map((row) => (x[row] + x[row + 1]) / 2);
    const edge = (pick) => pairs.map((row) => pick(y[row], y[row + 1]));
    const look = { color: colour, width: 1.2 };
    return [
      line(middle, edge(Math.min), yaxis, `${label}, lowest`, look, { showlegend: false }),
      line(middle, edge(Math.max), yaxis, label, look,
        { showlegend: !alone, fill: "tonexty", fillcolor: `${colour}38` }),
    ];
  }

  // The fitted slope and the promised limits of one signal, from where measuring began.
  function promises(entry, { course, x, scale, yaxis, theme, label, slopeText }, legend) {
    const clock = entry.per === "minute" ? course.seconds.map((second) => second / 60) : course.lap;
    const rows = course.lap.map((_, row) => row).filter((row) => row >= entry.row);
    const straight = (start, slope) => rows.map((row) => start + slope * (clock[row] - clock[entry.row]));
    const drawn = [];
    const add = (xs, ys, name, look) => drawn.push(line(xs, scale.apply(ys), yaxis, `${label}: ${name}`, look, legend));
    const measured = rows.map((row) => x.values[row]);
    const limit = { color: theme.limit, width: 1.5, dash: "dot" };
    if (entry.slope && entry.start !== null) {
      const look = { color: entry.leaks ? theme.leak : theme.quiet, width: 2.5, dash: "6px,5px" };
      add(measured, straight(entry.start, entry.slope), slopeText(entry, entry.slope), look);
    }
    if (entry.slope_limit && entry.begin !== null) {
      add(measured, straight(entry.begin, entry.slope_limit), `limit ${slopeText(entry, entry.slope_limit)}`, limit);
    }
    if (entry.most !== null) {
      add([x.values[0], x.values.at(-1)], [entry.most, entry.most], `limit ${entry.most}`, limit);
    }
    return drawn;
  }

  function figure(options) {
    const { course, signals, axis, theme, slopeText } = options;
    const shown = panels(course, signals);
    const x = along(course, axis);
    const traces = [], annotations = [], axes = {};
    const inner = shown.reduce((sum, panel) => sum + panel.height, 0) + GAP * (shown.length - 1);
    let top = inner;
    for (const [number, panel] of shown.entries()) {
      const suffix = number ? String(number + 1) : "";
      const scale = scaleFor(panel.unit, panel.names.flatMap((name) => course.columns[name]));
      axes[`yaxis${suffix}`] = {
        domain: [Math.max(0, (top - panel.height) / inner), top / inner], anchor: "x", automargin: true,
        title: { text: scale.name, standoff: 4 }, gridcolor: theme.line, zeroline: false,
        nticks: panel.height > COUNTER_HEIGHT ? 7 : 4,
      };
      annotations.push({
        text: heading(panel, course, slopeText), xref: "paper", yref: "paper", x: 0, y: top / inner,
        xanchor: "left", yanchor: "bottom", showarrow: false, font: { size: 13, color: theme.ink },
      });
      const alone = panel.names.length === 1;
      for (const [index, name] of panel.names.entries()) {
        const colour = theme.series[(alone ? number : index) % theme.series.length];
        const label = plain(signals[name]?.title ?? name);
        traces.push(...signalTraces(name, { ...options, x, scale, colour, label, alone, yaxis: `y${suffix}` }));
      }
      top -= panel.height + GAP;
    }
    const lowest = shown.length > 1 ? `y${shown.length}` : "y";
    const shapes = warmUp(course, x.values, theme);
    return { traces, layout: { ...look(theme, x, lowest, inner), ...axes, annotations, shapes } };
  }

  function look(theme, x, lowest, inner) {
    return {
      height: inner + TOP + BOTTOM, margin: { l: 56, r: 12, t: TOP, b: BOTTOM },
      paper_bgcolor: theme.card, plot_bgcolor: theme.card,
      font: { family: "system-ui, sans-serif", size: 12, color: theme.ink },
      xaxis: {
        title: { text: x.title, standoff: 6 }, anchor: lowest, gridcolor: theme.line, zeroline: false,
        linecolor: theme.line,
      },
      legend: { orientation: "h", x: 1, xanchor: "right", y: 1, yanchor: "bottom", yref: "paper", font: { size: 11 } },
      hovermode: "x unified", hoversubplots: "axis", dragmode: "zoom",
      hoverlabel: { bgcolor: theme.card, bordercolor: theme.line, font: { color: theme.ink } },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: theme.quiet, activecolor: theme.ink },
    };
  }

  // The heading of a panel with one signal describes its lines: only memory has a legend.
  function heading(panel, course, slopeText) {
    const entry = course.judged.find((judged) => panel.names.length === 1 && judged.signal === panel.names[0]);
    const notes = entry ? [
      entry.slope ? `${slopeText(entry, entry.slope)}, ${entry.state}` : "",
      entry.slope_limit ? `limit ${slopeText(entry, entry.slope_limit)}` : "",
      entry.most !== null ? `limit ${entry.most}` : "",
    ].filter(Boolean) : [];
    return [`<b>${plain(panel.title)}</b>`, ...notes.map(plain)].join("   ");
  }

  function warmUp(course, x, theme) {
    const end = course.lap.findLastIndex((lap) => lap <= course.warmup);
    if (!course.warmup || end < 1) return [];
    return [{
      type: "rect", xref: "x", yref: "paper", x0: x[0], x1: x[end], y0: 0, y1: 1, fillcolor: theme.shade,
      line: { width: 0 }, layer: "below", name: "warm-up",
      label: { text: "warm-up", textposition: "top left", font: { size: 11, color: theme.quiet } },
    }];
  }

  function draw(place, options) {
    const dark = !options.paper && matchMedia("(prefers-color-scheme: dark)").matches;
    const narrow = (options.width ?? place.clientWidth) < NARROW;
    const { traces, layout } = figure({ ...options, narrow, theme: dark ? DARK : LIGHT });
    if (options.width) layout.width = options.width;
    load().react(place, traces, layout, {
      responsive: !options.width, displaylogo: false, displayModeBar: !narrow,
      modeBarButtons: [["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d", "toImage"]],
    });
  }

  return { draw };
})();
