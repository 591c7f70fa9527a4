// The page of `sparring look`. Text of the data is inserted as text nodes only, never as HTML.
// Keys are strings, because numbers of JavaScript cannot represent all of them.
"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const inlined = $("data") ? JSON.parse($("data").textContent) : null;
  const state = { overview: null, table: null, sample: null, names: null, ages: null, row: null, turn: 0,
    stop: new AbortController() };

  // ---- requests ----

  async function ask(request, parameters = {}, onProgress = null, signal = undefined) {
    if (inlined) return fromInlined(request, parameters);
    const query = new URLSearchParams(parameters).toString();
    const reply = await fetch(`api/${request}${query ? `?${query}` : ""}`, { signal });
    if (!reply.body || reply.status === 403) throw new Error(await reply.text());
    const reader = reply.body.getReader(), decoder = new TextDecoder();
    let text = "";
    for (;;) {
      const { done, value } = await reader.read();
      text += decoder.decode(value || new Uint8Array(), { stream: !done });
      const lines = text.split("\n");
      text = lines.pop();
      for (const line of lines) {
        const found = JSON.parse(line);
        if ("error" in found) throw new Error(found.error);
        if ("result" in found) return found.result;
        if (onProgress) onProgress(found.progress);
      }
      if (done) throw new Error("sparring look stopped before it replied; start it again");
    }
  }

  function fromInlined(request, { table }) {
    const places = { overview: inlined.overview, sample: inlined.samples[table], names: inlined.names[table],
      ages: null, difference: inlined.differences[table] || null };
    return places[request];
  }

  function fail(error) {
    if (error.name === "AbortError") return;
    $("failure").textContent = error.message;
    $("failure").hidden = false;
  }

  const clearFailure = () => { $("failure").hidden = true; };

  // ---- elements ----

  function make(tag, attributes = {}, ...children) {
    const isSvg = ["svg", "circle", "rect", "line", "text", "g"].includes(tag);
    const made = isSvg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "onclick") made.addEventListener("click", value);
      else if (value !== null && value !== undefined) made.setAttribute(name, value);
    }
    made.append(...children.filter((each) => each !== null));
    return made;
  }

  const count = (number) => number.toLocaleString("en-US");
  const rounded = (number, digits) => (number === null || number === undefined ? "none" : Number(number.toPrecision(digits)).toString());
  const short = (number) => rounded(number, 5);

  function bytes(number) {
    let unit = "B";
    for (const larger of ["kB", "MB", "GB", "TB"]) {
      if (number < 1000) break;
      number /= 1000;
      unit = larger;
    }
    return unit === "B" ? `${count(number)} B` : `${number.toFixed(1)} ${unit}`;
  }

  function tableOf(caption, heads, lines) {
    const cell = (tag, value, isText, more) => {
      const kind = isText ? (tag === "td" ? "text" : null) : "number";
      return make(tag, { class: kind, ...more }, value instanceof Node ? value : String(value));
    };
    const head = make("tr", {}, ...heads.map(([name, isText]) => cell("th", name, isText, { scope: "col" })));
    const rows = lines.map((line) => make("tr", {}, ...line.map((value, place) =>
      place === 0 ? cell("th", value, heads[0][1], { scope: "row" }) : cell("td", value, heads[place][1], {}))));
    return make("table", {}, caption ? make("caption", {}, caption) : null,
      make("thead", {}, head), make("tbody", {}, ...rows));
  }

  const keyButton = (key, name) => (inlined ? make("span", {}, name)
    : make("button", { type: "button", class: "link", onclick: () => showRow(key) }, name));

  // ---- tables ----

  function rowsOf(facts) {
    return `${facts.is_exact ? "" : "at most "}${count(facts.most_rows)}`;
  }

  function showTables() {
    const heads = [["table", true], ["rows", false], ["bytes", false], ["dim", false], ["dtype", true],
      ["optimizer state", true]];
    const isDelta = state.overview.tables.some((each) => each.num_written !== null);
    if (isDelta) heads.push(["written by the newest delta", false], ["erased by it", false]);
    const lines = state.overview.tables.map((each) => [
      make("button", { type: "button", class: "link", onclick: () => choose(each.name) }, each.name),
      rowsOf(each), bytes(each.size_bytes), each.dim, each.dtype, each.state || "none",
      ...(isDelta ? [count(each.num_written || 0), count(each.num_erased || 0)] : [])]);
    const made = tableOf("", heads, lines);
    made.id = "tables";
    $("tables").replaceWith(made);
  }

  const factsOf = (name) => state.overview.tables.find((each) => each.name === name);

  async function choose(name) {
    const turn = ++state.turn;
    // Computations about another table are of no use any more.
    state.stop.abort();
    state.stop = new AbortController();
    clearFailure();
    Object.assign(state, { table: name, sample: null, names: null, ages: null, row: null, measured: null });
    for (const id of ["row", "difference", "measure-result", "list", "map", "histograms"]) $(id).replaceChildren();
    $("measure-progress").hidden = true;
    $("measure").disabled = false;
    document.querySelectorAll("#tables tbody tr").forEach((line) => {
      line.setAttribute("aria-current", String(line.querySelector("th").textContent === name));
    });
    $("table-title").textContent = `Table ${name}`;
    $("table").hidden = false;
    showTiles();
    $("remark").textContent = "Reading a sample …";
    try {
      const sample = await ask("sample", { table: name });
      if (turn !== state.turn) return;
      state.sample = sample;
      showTiles();
      showSample();
      document.body.dataset.ready = name;
      const names = await ask("names", { table: name });
      if (turn !== state.turn) return;
      state.names = names;
      showList();
      const difference = inlined && await ask("difference", { table: name });
      if (difference) showDifference(difference);
      if (inlined) $("versions").hidden = !difference;
    } catch (error) {
      if (turn === state.turn) fail(error);
    }
  }

  function showTiles() {
    const facts = factsOf(state.table), sample = state.sample, measured = state.measured;
    const norm = measured ? measured.numbers.norm : sample && sample.summaries.norm;
    const rows = measured ? count(measured.rows) : sample && !sample.is_exact ? `≈ ${count(sample.rows)}` : rowsOf(facts);
    const tiles = [[rows, "rows"], [bytes(facts.size_bytes), "in all files of the table"],
      [`${facts.dim} × ${facts.dtype}`, "embedding"]];
    if (norm) {
      const where = measured ? "of all rows" : "of the sample";
      tiles.push([rounded(norm.mean, 3), `mean norm ${where}`]);
      tiles.push([`${rounded(norm.min, 3)} – ${rounded(norm.max, 3)}`, `norms ${where}`]);
      if (norm.non_finite) tiles.push([count(norm.non_finite), `embeddings ${where} are not finite`]);
    }
    if (measured) {
      tiles.push(measured.dead === null ? ["not recorded", "dead rows: only tables that expire store their last steps"]
        : [count(measured.dead), "dead rows: not trained in the last half of the steps"]);
    }
    $("tiles").replaceChildren(...tiles.map(([value, remark]) =>
      make("div", { class: "tile" }, make("b", {}, value), make("span", {}, remark))));
  }

  // ---- sample, map, histograms ----

  function showSample() {
    const sample = state.sample;
    $("remark").textContent = sample.keys.length
      ? `The map and the histograms show a sample of ${count(sample.keys.length)} rows.`
      : "The table has no rows.";
    const colors = [...Object.keys(sample.numbers)];
    if (!inlined && state.overview.has_ages) colors.push("age");
    $("color").replaceChildren(...colors.map((name) => make("option", { value: name }, labelOf(name))));
    if (sample.colors) $("color").prepend(make("option", { value: COLUMN, selected: "" }, sample.colors.name));
    const methods = state.overview.has_umap && !inlined ? ["pca", "umap"] : ["pca"];
    $("method").replaceChildren(...methods.map((name) => make("option", { value: name }, name.toUpperCase())));
    $("method-label").hidden = methods.length < 2;
    showMap();
    showHistograms(sample.summaries, "sample");
    showList();
  }

  // Option for the column of a file. A number of rows cannot have this name.
  const COLUMN = "column of a file";
  const GROUP_COLORS = ["#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#9c6b4e"];
  const groupsOf = (name) => (name === COLUMN ? state.sample.colors.groups : []);
  const LABELS = { norm: "norm", score: "score", age: "age" };
  const MEANINGS = {
    norm: "Euclidean norm of the embedding",
    score: "score of the storage's eviction policy: with LFU, the frequency of the row",
    age: "steps since the row was trained",
  };
  const labelOf = (name) => (name === COLUMN ? state.sample.colors.name : LABELS[name] || name);

  function numbersOf(name) {
    if (name === COLUMN) return state.sample.colors.values;
    if (name === "age") return state.ages ? state.ages.numbers : null;
    return state.sample.numbers[name];
  }

  function rankShares(numbers) {
    // Ranks instead of values, so that a few outliers do not give all other rows one color.
    const order = numbers.map((value, place) => [value, place]).filter(([value]) => value !== null)
      .sort((a, b) => a[0] - b[0]);
    const shares = numbers.map(() => null);
    let share = 0;
    order.forEach(([value, place], rank) => {
      if (rank === 0 || value !== order[rank - 1][0]) share = order.length > 1 ? rank / (order.length - 1) : 0.5;
      shares[place] = share;
    });
    return shares;
  }

  function mix(share) {
    if (share === null) return "var(--edge)";
    const [from, to, part] = share < 0.5 ? ["--low", "--middle", share * 2] : ["--middle", "--high", share * 2 - 1];
    return `color-mix(in srgb, var(${to}) ${(part * 100).toFixed(0)}%, var(${from}))`;
  }

  const WIDTH = 640, HEIGHT = 440, MARGIN = 14;

  function placesOf(points) {
    const scale = (values, size, flips) => {
      const known = values.filter((each) => each !== null);
      const low = Math.min(...known), span = Math.max(...known) - low || 1;
      return values.map((each) => {
        if (each === null) return null;
        const share = (each - low) / span;
        return MARGIN + (flips ? 1 - share : share) * (size - 2 * MARGIN);
      });
    };
    return [scale(points.x, WIDTH, false), scale(points.y, HEIGHT, true)];
  }

  function showMap() {
    const { map, keys } = state.sample;
    const name = $("color").value, numbers = numbersOf(name) || [];
    const groups = groupsOf(name), [xs, ys] = placesOf(map), shares = rankShares(numbers);
    const fillOf = (place) => {
      if (!groups.length) return mix(shares[place] ?? null);
      return numbers[place] === null ? "var(--edge)" : GROUP_COLORS[numbers[place]];
    };
    const circles = keys.map((_, place) => (xs[place] === null ? null : make("circle", { cx: xs[place].toFixed(1),
      cy: ys[place].toFixed(1), r: 3, fill: fillOf(place), "fill-opacity": 0.75, "data-at": place })));
    const label = `Map of ${count(keys.length)} rows, colored by ${labelOf(name)}`;
    const drawn = make("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label }, ...circles);
    drawn.addEventListener("pointermove", tell);
    drawn.addEventListener("pointerleave", () => { $("tip").hidden = true; });
    drawn.addEventListener("click", (event) => {
      const at = event.target.dataset.at;
      if (at !== undefined && !inlined) showRow(keys[at]);
    });
    $("map").replaceChildren(drawn);
    const explained = map.explained
      ? ` The axes explain ${(map.explained[0] * 100).toFixed(0)} % and ${(map.explained[1] * 100).toFixed(0)} % of the variance.`
      : " Distances between groups have no meaning.";
    $("map-caption").textContent = `${map.method === "pca" ? "Principal components." : "UMAP."}${explained} `
      + `Color: ${groups.length ? "" : "rank by "}${MEANINGS[name] || labelOf(name)}.${inlined ? "" : " Select a point to show its row."}`;
    const known = numbers.filter((each) => each !== null);
    if (groups.length) {
      $("scale").replaceChildren(...groups.map((each, place) => make("span", {},
        make("svg", { viewBox: "0 0 10 10", class: "dot" },
          make("circle", { cx: 5, cy: 5, r: 5, fill: GROUP_COLORS[place] })), ` ${each}`)));
    } else $("scale").replaceChildren(...(known.length ? [short(Math.min(...known)), make("i"), short(Math.max(...known))] : []));
    markRow();
  }

  function tell(event) {
    const at = event.target.dataset.at, tip = $("tip");
    tip.hidden = at === undefined;
    if (tip.hidden) return;
    const numbers = Object.keys(state.sample.numbers).map((name) => `${labelOf(name)} ${short(state.sample.numbers[name][at])}`);
    tip.textContent = [nameAt(at), ...colorAt(at), ...numbers].join(" · ");
    tip.style.left = `${Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${event.clientY + 14}px`;
  }

  function colorAt(at) {
    const { colors } = state.sample;
    if (!colors || colors.values[at] === null) return [];
    return [`${colors.name} ${colors.groups[colors.values[at]] ?? short(colors.values[at])}`];
  }

  const nameAt = (at) => (state.names ? state.names[at] : state.sample.keys[at]);

  function markRow() {
    document.querySelectorAll("#map .mark").forEach((each) => each.remove());
    if (!state.row || !state.row.found) return;
    const at = state.sample.keys.indexOf(state.row.key);
    const found = at < 0 ? null : document.querySelector(`#map circle[data-at="${at}"]`);
    if (found) {
      const { cx, cy } = found.attributes;
      found.parentNode.append(make("circle", { cx: cx.value, cy: cy.value, r: 8, class: "mark" }));
    }
  }

  function showHistograms(summaries, where) {
    const figures = Object.entries(summaries).map(([name, each]) => histogram(name, each, where));
    if (!("score" in summaries)) figures.push(absent("Frequency", "the storage keeps no scores"));
    if (!("age" in summaries) && (where === "all" || !state.overview.has_ages)) figures.push(absent("Age", "rows of this table do not expire"));
    $("histograms").replaceChildren(...figures);
  }

  const absent = (title, why) => make("p", { class: "note" }, `${title}: not recorded, because ${why}.`);

  function histogram(name, { histogram: { edges, counts, is_logarithmic: isLogarithmic } }, where) {
    const width = 420, height = 150, bottom = 22, most = Math.max(1, ...counts);
    const step = width / counts.length;
    const bars = counts.map((number, place) => {
      const size = (number / most) * (height - bottom - 6);
      return make("rect", { class: "bar", x: (place * step + 0.5).toFixed(1), width: (step - 1).toFixed(1),
        y: (height - bottom - size).toFixed(1), height: size.toFixed(1) });
    });
    const total = counts.reduce((sum, each) => sum + each, 0);
    const label = `Histogram of ${labelOf(name)}: ${count(total)} rows from ${short(edges[0])} to ${short(edges[edges.length - 1])}`;
    const drawn = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, ...bars,
      make("line", { class: "axis", x1: 0, x2: width, y1: height - bottom, y2: height - bottom }),
      make("text", { x: 0, y: height - 6 }, short(edges[0])),
      make("text", { x: width, y: height - 6, "text-anchor": "end" }, short(edges[edges.length - 1])));
    const which = where === "all" ? `all ${count(total)} rows` : `${count(total)} rows of the sample`;
    return make("figure", {}, make("h3", {}, `Histogram of ${labelOf(name)}`),
      make("figcaption", {}, `${MEANINGS[name] || name}, ${which}${isLogarithmic ? ", logarithmic bins" : ""}`), drawn);
  }

  const MOST_LISTED = 100;

  function showList() {
    const name = groupsOf($("color").value).length ? "norm" : $("color").value;
    const numbers = numbersOf(name) || state.sample.numbers.norm;
    const order = [...numbers.keys()].sort((a, b) => (numbers[b] ?? -Infinity) - (numbers[a] ?? -Infinity)).slice(0, MOST_LISTED);
    const shown = Object.keys(state.sample.numbers);
    const lines = order.map((at) => [keyButton(state.sample.keys[at], nameAt(at)),
      ...shown.map((each) => short(state.sample.numbers[each][at]))]);
    $("list").replaceChildren(tableOf(`The ${lines.length} rows of the sample with the largest ${labelOf(name)}`,
      [["id", true], ...shown.map((each) => [labelOf(each), false])], lines));
  }

  // ---- one row ----

  async function showRow(id) {
    clearFailure();
    $("id").value = id;
    const table = state.table;
    try {
      const row = await ask("row", { table, id });
      if (table !== state.table) return;
      state.row = row;
      if (state.sample) markRow();
      if (row.found) describeRow(row);
      else $("row").replaceChildren(make("p", {}, `${id} has no row: it reads as its initial value. Searched for the keys ${row.candidates.join(" and ")}.`));
      $("row").scrollIntoView({ block: "nearest" });
    } catch (error) { fail(error); }
  }

  function describeRow(row) {
    const facts = [["key", row.key], ["norm", short(row.norm)]];
    if (row.name !== row.key) facts.unshift(["id", row.name]);
    if ("score" in row) facts.push(["score", count(row.score)]);
    for (const [name, values] of Object.entries(row.parts)) {
      if (name !== "embedding") facts.push([name, values.map(short).join(" ")]);
    }
    const list = make("table", {}, make("tbody", {}, ...facts.map(([name, value]) =>
      make("tr", {}, make("th", { scope: "row" }, name), make("td", { class: "text" }, value)))));
    const values = row.parts.embedding;
    const more = make("details", {}, make("summary", {}, `Embedding and optimizer state as numbers`),
      make("p", { class: "values" }, values.map(short).join(" ")),
      row.state.length ? make("p", { class: "values" }, `state of ${row.state_method || "the optimizer"}: ${row.state.map(short).join(" ")}`) : null);
    const near = make("div", { "aria-live": "polite" }), past = make("div", { "aria-live": "polite" });
    const metric = make("select", { "aria-label": "Metric" }, ...["cosine", "dot", "l2"].map((each) => make("option", {}, each)));
    const progress = make("progress", { max: 1, "aria-label": "Progress of the search", hidden: "" });
    const find = make("button", { type: "button", class: "action", onclick: () => showNeighbors(row, metric.value, find, progress, near) }, "Find neighbors");
    const look = make("button", { type: "button", class: "action", onclick: () => showHistory(row, look, past) }, "Show history");
    const isServed = state.overview.kind !== "snapshot";
    $("row").replaceChildren(make("div", { class: "box" }, list), bars(values), more,
      make("div", { class: "actions" }, find, metric, progress, isServed ? null : look), near, past);
  }

  function bars(values) {
    const width = 800, height = 90, middle = height / 2, step = width / values.length;
    const most = Math.max(1e-30, ...values.map((each) => Math.abs(each ?? 0)));
    const drawn = values.map((each, place) => {
      const size = (Math.abs(each ?? 0) / most) * (middle - 4);
      return make("rect", { class: "bar", x: (place * step).toFixed(2), width: Math.max(0.5, step - 1).toFixed(2),
        y: ((each ?? 0) > 0 ? middle - size : middle).toFixed(2), height: size.toFixed(2) });
    });
    return make("figure", {}, make("h3", {}, "Embedding"),
      make("figcaption", {}, `${values.length} elements, from ${short(-most)} to ${short(most)}`),
      make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Elements of the embedding" }, ...drawn,
        make("line", { class: "axis", x1: 0, x2: width, y1: middle, y2: middle })));
  }

  async function showNeighbors(row, metric, button, progress, place) {
    clearFailure();
    button.disabled = true;
    progress.hidden = false;
    progress.value = 0;
    try {
      const { neighbors } = await ask("neighbors", { table: state.table, id: row.key, metric, k: 10 },
        (share) => { progress.value = share; }, state.stop.signal);
      place.replaceChildren(make("div", { class: "box" }, tableOf("Nearest rows among all rows",
        [["id", true], [metric === "l2" ? "−(distance²)" : metric, false]],
        neighbors.map((each) => [keyButton(each.key, each.name), short(each.score)]))));
    } catch (error) { fail(error); } finally {
      button.disabled = false;
      progress.hidden = true;
    }
  }

  async function showHistory(row, button, place) {
    clearFailure();
    button.disabled = true;
    try {
      const changes = await ask("history", { table: state.table, id: row.key });
      const data = (each) => {
        const parts = Object.entries(each.cuts || {}).map(([name, [begin, end]]) => `${name}: ${begin}–${end}`);
        if (each.epochs) parts.push(each.epochs[0] === each.epochs[1] ? `epoch ${each.epochs[0]}` : `epochs ${each.epochs[0]} to ${each.epochs[1]}`);
        if (each.path) parts.push(each.path);
        return parts.join(", ");
      };
      place.replaceChildren(make("div", { class: "box" }, tableOf("Changes over the kept versions, oldest first",
        [["step", false], ["saved", true], ["change", true], ["moved", false], ["norm", false], ["trained data", true]],
        changes.map((each) => [count(each.step), each.time || "unknown", each.change,
          each.moved === null ? "" : short(each.moved), each.norm === null ? "" : short(each.norm), data(each)]))));
    } catch (error) { fail(error); } finally { button.disabled = false; }
  }

  // ---- all rows, two versions ----

  async function measure() {
    clearFailure();
    const table = state.table, progress = $("measure-progress");
    $("measure").disabled = true;
    progress.hidden = false;
    progress.value = 0;
    try {
      const measured = await ask("measure", { table }, (share) => { progress.value = share; }, state.stop.signal);
      if (table !== state.table) return;
      state.measured = measured;
      showTiles();
      showHistograms(measured.numbers, "all");
      $("measure-result").textContent = `Measured all ${count(measured.rows)} rows.`;
    } catch (error) { fail(error); } finally {
      if (table === state.table) {
        $("measure").disabled = false;
        progress.hidden = true;
      }
    }
  }

  async function listVersions() {
    const { versions, previous } = await ask("versions");
    const others = versions.filter((each) => !each.is_shown);
    const options = others.map((each) => make("option", { value: each.name }, `${each.name}, step ${count(each.step)}`)).reverse();
    const given = state.overview.with;
    if (given) options.unshift(make("option", { value: "" }, given));
    $("with").replaceChildren(...options);
    if (!given && previous) $("with").value = previous;
    if (!options.length) $("compare").replaceChildren(make("p", { class: "note" }, "The folder contains no other version. Start `sparring look` with --with to compare with another one."));
  }

  async function compare(event) {
    event.preventDefault();
    clearFailure();
    const table = state.table, progress = $("compare-progress"), name = $("with").value;
    const button = $("compare").querySelector("button");
    button.disabled = true;
    progress.hidden = false;
    progress.value = 0;
    try {
      const found = await ask("difference", name ? { table, with: name } : { table }, (share) => { progress.value = share; }, state.stop.signal);
      if (table === state.table) showDifference(found);
    } catch (error) { fail(error); } finally {
      button.disabled = false;
      progress.hidden = true;
    }
  }

  function showDifference(found) {
    const tiles = [[count(found.created), "new rows"], [count(found.erased), "rows were erased"],
      [count(found.changed), "rows changed"], [count(found.unchanged), "rows were not trained in between, or did not change"],
      [found.moved_mean === null ? "none" : short(found.moved_mean), "mean distance of rows that moved"]];
    const line = (name, [before, after], format) => [name, format(before), format(after)];
    $("difference").replaceChildren(
      make("div", { class: "tiles" }, ...tiles.map(([value, remark]) => make("div", { class: "tile" }, make("b", {}, value), make("span", {}, remark)))),
      make("div", { class: "box flat" },
        tableOf("", [["", true], [`step ${count(found.before.step)}`, false], [`step ${count(found.after.step)}`, false]],
          [line("rows", found.rows, count), line("mean norm", found.norm_mean, short), line("largest norm", found.norm_max, short)])),
      make("div", { class: "box flat" },
        tableOf("Rows that moved most", [["id", true], ["moved", false], ["norm before", false], ["norm after", false]],
          found.most_moved.map((each) => [keyButton(each.key, each.name), each.moved === null ? "not finite" : short(each.moved), short(each.norms[0]), short(each.norms[1])]))));
  }

  // ---- start ----

  async function recolor() {
    clearFailure();
    const table = state.table;
    try {
      if ($("color").value === "age" && !state.ages) {
        const ages = await ask("ages", { table });
        if (table !== state.table) return;
        if (ages === null) {
          $("color").value = "norm";
          throw new Error("The age of rows is not recorded: only tables whose rows expire store the last step of each row.");
        }
        state.ages = ages;
        showHistograms({ ...state.sample.summaries, age: ages.summary }, "sample");
      }
      showMap();
      showList();
    } catch (error) { fail(error); }
  }

  async function remap() {
    clearFailure();
    const table = state.table, method = $("method").value;
    $("map-caption").textContent = "Computing the map …";
    try {
      const sample = await ask("sample", { table, method });
      if (table === state.table && method === $("method").value) {
        state.sample = sample;
        showMap();
      }
    } catch (error) { fail(error); }
  }

  async function start() {
    if (inlined) document.body.classList.add("static");
    $("search").addEventListener("submit", (event) => {
      event.preventDefault();
      if ($("id").value) showRow($("id").value);
    });
    $("measure").addEventListener("click", measure);
    $("compare").addEventListener("submit", compare);
    $("color").addEventListener("change", recolor);
    $("method").addEventListener("change", remap);
    try {
      const overview = await ask("overview");
      state.overview = overview;
      document.title = `${overview.url.split("/").pop()}: sparring look`;
      $("title").textContent = overview.url.split("/").slice(-2).join("/");
      const when = overview.time === null ? "" : `, saved ${new Date(overview.time * 1000).toISOString().slice(0, 16).replace("T", " ")} UTC`;
      const chain = overview.chain.length > 1 ? `, ${count(overview.chain.length - 1)} deltas over ${overview.chain[overview.chain.length - 1]}` : "";
      $("lead").textContent = `${overview.kind[0].toUpperCase()}${overview.kind.slice(1)} ${overview.url}, step ${count(overview.step)}${when}${chain}.`;
      showTables();
      if (!overview.tables.length) $("lead").textContent += " It contains no tables.";
      else await choose(overview.tables[0].name);
      if (!inlined) await listVersions();
    } catch (error) {
      $("lead").textContent = "";
      fail(error);
    }
  }

  start();
})();
