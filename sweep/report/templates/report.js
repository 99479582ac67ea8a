"use strict";
(() => {
  const THEMES = {
    light: { ink: "#1b1f24", grid: "#e3e7ec", zero: "#8b949e", card: "#ffffff" },
    dark: { ink: "#d5dbe2", grid: "#2c343d", zero: "#77818c", card: "#0f1318" },
  };
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const PRINT_WIDTH = { wide: 660, half: 320 };
  const PRINT_HEIGHT = 205;

  const paint = (layout, name) => {
    const theme = THEMES[name];
    const change = { "font.color": theme.ink, "hoverlabel.bgcolor": theme.card, "hoverlabel.font.color": theme.ink,
      "hoverlabel.bordercolor": theme.zero };
    for (const key of Object.keys(layout)) {
      if (/^[xy]axis\d*$/.test(key)) {
        Object.assign(change, { [`${key}.gridcolor`]: theme.grid, [`${key}.linecolor`]: theme.zero,
          [`${key}.zerolinecolor`]: theme.zero, [`${key}.tickcolor`]: theme.zero });
      }
    }
    return change;
  };

  const plots = [];
  const draw = () => {
    for (const holder of document.querySelectorAll(".plot")) {
      const spec = JSON.parse(document.getElementById(`spec-${holder.id}`).textContent);
      spec.layout.font = { family: getComputedStyle(document.body).fontFamily, size: 12 };
      const config = { responsive: true, displaylogo: false, displayModeBar: false };
      Plotly.newPlot(holder, spec.data, spec.layout, config).then(() => {
        Plotly.relayout(holder, paint(holder.layout, dark.matches ? "dark" : "light"));
        holder.dataset.drawn = "1";
      });
      plots.push(holder);
    }
  };
  const repaint = (name) => plots.forEach((holder) => Plotly.relayout(holder, paint(holder.layout, name)));

  dark.addEventListener("change", () => repaint(dark.matches ? "dark" : "light"));
  window.addEventListener("beforeprint", () => plots.forEach((holder) => {
    const width = holder.closest(".small") ? PRINT_WIDTH.half : PRINT_WIDTH.wide;
    holder.dataset.height = holder.layout.height;
    const height = Math.min(holder.layout.height, PRINT_HEIGHT);
    Plotly.relayout(holder, { ...paint(holder.layout, "light"), width, height, autosize: false });
  }));
  window.addEventListener("afterprint", () => plots.forEach((holder) => {
    const screen = { width: null, height: Number(holder.dataset.height), autosize: true };
    Plotly.relayout(holder, { ...paint(holder.layout, dark.matches ? "dark" : "light"), ...screen });
  }));

  for (const key of document.querySelectorAll(".key")) {
    key.addEventListener("click", () => {
      const shown = key.getAttribute("aria-pressed") !== "true";
      key.setAttribute("aria-pressed", String(shown));
      Plotly.restyle(key.dataset.plot, { visible: shown }, [Number(key.dataset.trace)]);
    });
  }

  const copied = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      const done = document.execCommand("copy");
      area.remove();
      return done;
    }
  };
  for (const button of document.querySelectorAll(".copy")) {
    button.addEventListener("click", async () => {
      const text = document.getElementById(button.dataset.from).textContent;
      const before = button.textContent;
      button.textContent = (await copied(text)) ? "Copied" : "Press Ctrl-C";
      setTimeout(() => { button.textContent = before; }, 1500);
    });
  }

  const table = document.getElementById("arms-table");
  if (table) {
    const body = table.tBodies[0];
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const value = (row) => row.cells[column].dataset.v ?? row.cells[column].textContent.trim();
      const numeric = head.classList.contains("n");
      const rows = [...body.rows].sort((a, b) => {
        const [x, y] = [value(a), value(b)];
        if (x === "" || y === "") return (x === "") - (y === "");
        return (numeric ? x - y : x.localeCompare(y)) * (down ? -1 : 1);
      });
      body.append(...rows);
    }));
    const words = document.getElementById("filter");
    const verdict = document.getElementById("verdict-filter");
    const shown = document.getElementById("shown");
    const filter = () => {
      const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
      let count = 0;
      for (const row of body.rows) {
        const text = row.textContent.toLowerCase();
        const fits = wanted.every((word) => text.includes(word)) &&
          (verdict.value === "" || row.dataset.verdict === verdict.value);
        row.hidden = !fits;
        count += fits;
      }
      shown.textContent = `${count} of ${body.rows.length} arms`;
    };
    words.addEventListener("input", filter);
    verdict.addEventListener("change", filter);
    filter();
  }

  const live = document.body.dataset.live;
  if (live) {
    setInterval(async () => {
      const answer = await fetch("state").then((r) => r.json()).catch(() => null);
      if (answer && answer.revision !== live) {
        sessionStorage.setItem("scroll", String(window.scrollY));
        location.reload();
      }
    }, 2000);
    window.addEventListener("load", () => window.scrollTo(0, Number(sessionStorage.getItem("scroll") || 0)));
  }
  draw();
})();
