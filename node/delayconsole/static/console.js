"use strict";
// The choices of colours and of UTC or local time, kept in this browser; and the buttons that copy a command.
(() => {
  const choice = (name, values) => {
    const kept = localStorage.getItem(name);
    return values.includes(kept) ? kept : values[0];
  };
  const THEMES = ["auto", "light", "dark"], ZONES = ["utc", "local"];
  const root = document.documentElement;

  const two = (number) => String(number).padStart(2, "0");
  // As 2026-01-31 09:00:00.000Z, cut off after so many characters of the time.
  const shown = (ms, chars = 23) => {
    const at = new Date(ms);
    if (zone() === "utc") return `${at.toISOString().replace("T", " ").slice(0, chars)}Z`;
    const offset = -at.getTimezoneOffset(), wide = Math.abs(offset);
    const text = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ` +
      `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}.${String(at.getMilliseconds()).padStart(3, "0")}`;
    return `${text.slice(0, chars)}${offset < 0 ? "-" : "+"}${two(Math.floor(wide / 60))}:${two(wide % 60)}`;
  };

  const theme = () => choice("theme", THEMES), zone = () => choice("zone", ZONES);

  const times = () => {
    for (const one of document.querySelectorAll("time[data-ms]")) {
      const text = shown(Number(one.dataset.ms), Number(one.dataset.chars));
      if (one.textContent !== text) one.textContent = text;
    }
  };

  const apply = () => {
    if (theme() === "auto") delete root.dataset.theme; else root.dataset.theme = theme();
    const named = document.getElementById("theme"), timed = document.getElementById("zone");
    if (named) {
      named.textContent = theme()[0].toUpperCase() + theme().slice(1);
      named.title = `Colours: ${theme() === "auto" ? "as the system has them" : theme()}; switch`;
    }
    if (timed) {
      timed.textContent = zone() === "utc" ? "UTC" : "Local";
      timed.title = zone() === "utc" ? "Times in UTC; switch to local time" : "Times in local time; switch to UTC";
    }
    times();
    document.dispatchEvent(new CustomEvent("console:look"));
  };

  const next = (name, values) => {
    localStorage.setItem(name, values[(values.indexOf(choice(name, values)) + 1) % values.length]);
    apply();
  };

  window.consoleLook = { zone, shown };
  apply();  // before anything is drawn: no flash of the other colours
  document.addEventListener("DOMContentLoaded", () => {
    apply();
    document.getElementById("theme").addEventListener("click", () => next("theme", THEMES));
    document.getElementById("zone").addEventListener("click", () => next("zone", ZONES));
    new MutationObserver(times).observe(document.body, { childList: true, subtree: true });
  });
  document.addEventListener("click", async (event) => {
    const button = event.target.closest?.("[data-copy]");
    if (!button) return;
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  document.addEventListener("change", (event) => {
    const box = event.target;
    if (!box.dataset?.all) return;
    for (const one of document.querySelectorAll(`input[name="${CSS.escape(box.dataset.all)}"]`)) one.checked = box.checked;
  });
})();
