// Refreshes pages, answers keys, shows local times, copies lines. Without it every page still works.
"use strict";

const root = document.documentElement;

// A table that is wider than the screen can be scrolled by the keyboard.
function scrollable(part) {
  for (const wide of part.querySelectorAll(".wide")) {
    if (wide.scrollWidth > wide.clientWidth) wide.tabIndex = 0;
    else wide.removeAttribute("tabindex");
  }
}

function localTimes(part) {
  if (root.dataset.zone !== "local") return;
  for (const time of part.querySelectorAll("time[data-ms]")) {
    const at = new Date(Number(time.dataset.ms));
    const two = (number) => String(number).padStart(2, "0");
    time.title = time.textContent + " UTC";
    time.textContent = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ` +
      `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  }
}

// A refresh must not take away what somebody reads or writes.
function isBusy(live) {
  const active = document.activeElement;
  if (document.hidden || String(getSelection())) return true;
  if (live.querySelector("details[open]")) return true;
  const top = live.querySelector("[data-top]");
  if (top && top.getBoundingClientRect().bottom < 0) return true;
  return live.contains(active) && /^(INPUT|SELECT|TEXTAREA)$/.test(active.tagName);
}

function placeOfFocus(live) {
  const links = [...live.querySelectorAll("a, button, summary")];
  const link = links.indexOf(document.activeElement);
  return link < 0 ? null : links[link].getAttribute("href");
}

async function refresh() {
  const live = document.getElementById("live");
  if (!live || isBusy(live)) return;
  try {
    const answer = await fetch(location.href, { headers: { "x-refresh": "1" }, redirect: "error" });
    if (!answer.ok) throw new Error(answer.statusText);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("live");
    if (!page || isBusy(live)) return;
    const focused = placeOfFocus(live), row = rows().findIndex((one) => one.classList.contains("at"));
    live.replaceChildren(...page.childNodes);
    localTimes(live);
    scrollable(live);
    if (row >= 0) rows()[row]?.classList.add("at");
    if (focused) [...live.querySelectorAll("a")].find((one) => one.getAttribute("href") === focused)?.focus();
    live.classList.remove("stale");
  } catch {
    live.classList.add("stale");
  }
}

function rows() {
  return [...document.querySelectorAll("#live tr[data-row]")];
}

function step(by) {
  const all = rows();
  if (!all.length) return;
  const now = all.findIndex((one) => one.classList.contains("at"));
  const next = Math.min(Math.max(now + by, 0), all.length - 1);
  all[now]?.classList.remove("at");
  all[next].classList.add("at");
  all[next].scrollIntoView({ block: "nearest" });
}

let after = "";
function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const pages = { o: "", t: "topics", g: "groups", m: "messages", w: "waiting", c: "clients", b: "brokers" };
  const before = after;
  after = "";
  if (before === "g" && event.key in pages) {
    const links = [...document.querySelectorAll(".nav a")];
    const wanted = pages[event.key];
    const link = wanted ? links.find((one) => one.pathname.endsWith("/" + wanted)) : links[0];
    if (link) location.href = link.href;
  } else if (event.key === "g") {
    after = "g";
  } else if (event.key === "/") {
    const search = document.querySelector("[data-search]");
    if (search) {
      event.preventDefault();
      search.focus();
    }
  } else if (event.key === "j") {
    step(1);
  } else if (event.key === "k") {
    step(-1);
  } else if (event.key === "Enter" && event.target === document.body) {
    document.querySelector("tr.at a")?.click();
  } else if (event.key === "?") {
    document.getElementById("help")?.showModal();
  }
}

document.addEventListener("keydown", onKey);
document.addEventListener("change", (event) => {
  if (event.target.matches("[data-submit]")) event.target.form.submit();
});
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-copy]");
  if (button) navigator.clipboard?.writeText(button.previousElementSibling.textContent);
  for (const menu of document.querySelectorAll("details.menu[open]")) {
    if (!menu.contains(event.target)) menu.open = false;
  }
});
localTimes(document);
scrollable(document);
addEventListener("resize", () => scrollable(document));
document.querySelector(".nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
if (document.body.dataset.refresh) setInterval(refresh, Number(document.body.dataset.refresh));
