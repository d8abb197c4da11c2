#include "live_model.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "choice.hpp"
#include "live_views.hpp"
#include "table_text.hpp"

namespace pollcore::stat {
namespace {

double number_of(const ShownValue& value) {
    return value.total.empty() ? 0 : value.total[0];
}

std::string duration(double ns) {
    return ns < 1e3   ? fmt::format("{:.0f}ns", ns)
           : ns < 1e6 ? fmt::format("{:.1f}us", ns / 1e3)
                      : fmt::format("{:.1f}ms", ns / 1e6);
}

std::size_t characters_of(std::string_view text) {
    return static_cast<std::size_t>(
        std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

/// As many characters as fit.
std::string cut(std::string_view text, std::size_t width) {
    std::size_t characters = 0;
    std::size_t end = 0;
    while (end < text.size()) {
        const bool begins = (static_cast<unsigned char>(text[end]) & 0xc0) != 0x80;
        if (begins && characters++ == width) {
            break;
        }
        ++end;
    }
    return std::string(text.substr(0, end));
}

std::string padded(const std::string& text, int width) {
    const auto wanted = static_cast<std::size_t>(std::abs(width));
    const std::string fitting = cut(text, wanted);
    const std::string blanks(wanted - characters_of(fitting), ' ');
    return width < 0 ? fitting + blanks : blanks + fitting;
}

}  // namespace

LiveModel::LiveModel() : screens_{Screen{.table = "worker", .of_field = {}, .of_name = {}}} {}

void LiveModel::take(statistics::Snapshot now) {
    if (frozen_) {
        return;
    }
    before_ = now_ ? std::move(now_) : std::optional(now);
    now_ = std::move(now);
    shown_ = shown(*before_, *now_);
    remember_busy();
}

void LiveModel::remember_busy() {
    for (const ShownTable& table : shown_) {
        const auto busy = table.field("busy");
        if (table.name != "worker" || !busy) {
            continue;
        }
        for (const auto& row : table.rows) {
            std::deque<double>& its = busy_[static_cast<std::uint64_t>(number_of(row[0]))];
            its.push_back(number_of(row[*busy]));
            if (its.size() > kSparkline) {
                its.pop_front();
            }
        }
    }
}

std::string LiveModel::sparkline(std::uint64_t worker) const {
    constexpr std::array<const char*, 9> kBlocks{" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    std::string line;
    if (const auto its = busy_.find(worker); its != busy_.end()) {
        for (const double share : its->second) {
            line += kBlocks[static_cast<std::size_t>(std::lround(std::clamp(share, 0.0, 1.0) * (kBlocks.size() - 1)))];
        }
    }
    return line;
}

const ShownTable* LiveModel::table() const noexcept {
    const std::string& wanted = screens_.back().table;
    const auto found =
        std::find_if(shown_.begin(), shown_.end(), [&](const ShownTable& table) { return table.name == wanted; });
    return found != shown_.end() ? &*found : nullptr;
}

std::vector<LiveModel::Row> LiveModel::rows() const {
    std::vector<Row> all;
    const ShownTable* const its = table();
    if (its == nullptr) {
        return all;
    }
    const Screen& screen = screens_.back();
    const TableView& columns = view_of(screen.table);
    const auto of = screen.of_field.empty() ? std::nullopt : its->field(screen.of_field);
    for (const auto& values : its->rows) {
        if (of && static_cast<std::uint64_t>(number_of(values[*of])) != screen.of_id) {
            continue;
        }
        Row row{.id = static_cast<std::uint64_t>(number_of(values[0])), .cells = {}, .text_order = {}};
        for (std::size_t i = 0; i < columns.count; ++i) {
            const Column& column = columns.columns[i];
            const auto field = its->field(column.field);
            if (!field) {  // a runtime of another version
                row.cells.emplace_back("-");
                continue;
            }
            const ShownValue& value = values[*field];
            double order = number_of(value);
            std::string cell;
            switch (column.show) {
                case Show::text: cell = value.text; break;
                case Show::number: cell = fmt::format("{:.0f}", order); break;
                case Show::amount: cell = short_number(order); break;
                case Show::rate:
                    order = totals_ ? order : value.rate;
                    cell = short_number(order) + (totals_ ? "" : "/s");
                    break;
                case Show::total: cell = short_number(order); break;
                case Show::share: cell = fmt::format("{:.1f}%", order * 100); break;
                case Show::duration: cell = duration(order); break;
                case Show::sparkline: cell = sparkline(row.id); break;
                case Show::per_doorbell: {
                    const auto sends = its->field("sends");
                    order = value.rate > 0 && sends ? values[*sends].rate / value.rate : 0;
                    cell = order > 0 ? fmt::format("{:.1f}", order) : "-";
                    break;
                }
                case Show::p99:
                    order = value.total.size() > 1 ? value.total[1] : 0;
                    cell = order > 0 ? duration(order) : "-";
                    break;
                case Show::time: cell = time_text(order); break;
                case Show::level: cell = level_text(order); break;
            }
            if (i == screen.sort) {
                row.order = order;
                row.text_order = value.text;
            }
            row.cells.push_back(std::move(cell));
        }
        all.push_back(std::move(row));
    }
    std::stable_sort(all.begin(), all.end(), [&](const Row& a, const Row& b) {
        const bool less = a.text_order != b.text_order ? a.text_order < b.text_order : a.order < b.order;
        const bool more = a.text_order != b.text_order ? b.text_order < a.text_order : b.order < a.order;
        return screen.reverse ? more : less;
    });
    return all;
}

void LiveModel::show(std::string_view table) {
    screens_.assign(1, Screen{.table = std::string(table), .of_field = {}, .of_name = {}});
}

void LiveModel::enter() {
    const TableView& view = view_of(screen().table);
    const std::vector<Row> all = rows();
    if (view.inside.empty() || screen().selected >= all.size()) {
        return;
    }
    const Row& row = all[screen().selected];
    screens_.push_back({.table = std::string(view.inside),
                        .of_field = std::string(view.its_field),
                        .of_id = row.id,
                        .of_name = fmt::format("{} {}", screen().table, row.id)});
}

void LiveModel::press(Key key) {
    constexpr std::size_t kPage = 20;
    Screen& its = screen();
    switch (key) {
        case Key::none: break;
        case Key::up: its.selected -= its.selected > 0; break;
        case Key::down: ++its.selected; break;
        case Key::page_up: its.selected -= std::min(its.selected, kPage); break;
        case Key::page_down: its.selected += kPage; break;
        case Key::enter: enter(); break;
        case Key::back:
            if (screens_.size() > 1) {
                screens_.pop_back();
            }
            break;
        case Key::sort: its.sort = (its.sort + 1) % view_of(its.table).count; break;
        case Key::reverse: its.reverse = !its.reverse; break;
        case Key::totals: totals_ = !totals_; break;
        case Key::freeze: frozen_ = !frozen_; break;
        case Key::workers: show("worker"); break;
        case Key::sessions: show("session"); break;
        case Key::queue_pairs: show("queue_pair"); break;
        case Key::devices: show("device"); break;
        case Key::processes: show("process"); break;
        case Key::runtime: show("runtime"); break;
        case Key::events:
            show("event");
            screen().reverse = true;  // the newest first
            break;
        case Key::stalls:
            show("stall");
            screen().reverse = true;
            break;
        case Key::port_counters: show("port_counter"); break;
        case Key::quit: quits_ = true; break;
    }
}

std::vector<LiveModel::Line> LiveModel::lines(std::size_t width, std::size_t height) {
    std::vector<Line> all;
    Screen& its = screen();
    const std::vector<Row> every = rows();
    its.selected = every.empty() ? 0 : std::min(its.selected, every.size() - 1);
    std::string title =
        now_ ? fmt::format("{} (process {}{})", name_of(*now_), now_->header.pid, now_->alive ? "" : ", dead") : "";
    title += fmt::format(": {} {}{}", every.size(), view_of(its.table).plural,
                         its.of_name.empty() ? "" : " of " + its.of_name);
    title += frozen_ ? " - frozen" : "";
    title += totals_ ? " - totals" : "";
    all.push_back({.text = cut(title, width), .emphasized = true});
    const TableView& columns = view_of(its.table);
    std::string header;
    for (std::size_t i = 0; i < columns.count; ++i) {
        const Column& column = columns.columns[i];
        const std::string mark = i == its.sort ? (its.reverse ? "v" : "^") : "";
        header += padded(column.header + mark, column.width < 0 ? column.width - 1 : column.width + 1) + " ";
    }
    all.push_back({.text = cut(header, width)});
    constexpr std::size_t kAround = 3;  // title, header, keys
    const std::size_t room = height > kAround ? height - kAround : 0;
    its.first = std::min(its.first, its.selected);
    if (room > 0 && its.selected >= its.first + room) {
        its.first = its.selected - room + 1;
    }
    for (std::size_t i = its.first; i < every.size() && i < its.first + room; ++i) {
        std::string line;
        for (std::size_t k = 0; k < columns.count; ++k) {
            const int column_width = columns.columns[k].width;
            line += padded(every[i].cells[k], column_width < 0 ? column_width - 1 : column_width + 1) + " ";
        }
        all.push_back({.text = cut(line, width), .emphasized = i == its.selected});
    }
    all.resize(height > 0 ? height - 1 : 0);
    all.push_back(
        {.text = cut("1 workers 2 sessions 3 queue pairs 4 devices 5 processes 6 runtime 7 events 8 stalls 9 ports | "
                     "Enter Bksp s r t f q quit",
                     width)});
    all.resize(height);
    return all;
}

}  // namespace pollcore::stat
