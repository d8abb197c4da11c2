// What the live view shows, without the terminal: tables of one runtime, one at a time, that the user sorts, and enters
// row by row.
//
// Thread safety: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pollcore/statistics.hpp"
#include "shown.hpp"

namespace pollcore::stat {

enum class Key : std::uint8_t {
    none,
    up,
    down,
    page_up,
    page_down,
    enter,  ///< shows what belongs to the selected row: of a worker or a process its sessions, of a session its queue
            ///< pairs
    back,
    sort,     ///< by the next column
    reverse,  ///< the other way round
    totals,   ///< totals in place of rates, and back
    freeze,
    workers,
    sessions,
    queue_pairs,
    devices,
    processes,
    runtime,
    events,
    stalls,
    port_counters,
    quit,
};

class LiveModel {
public:
    LiveModel();

    /// Takes a look at the runtime. A frozen view stays as it is.
    void take(statistics::Snapshot now);
    void press(Key key);
    [[nodiscard]] bool quits() const noexcept { return quits_; }
    [[nodiscard]] bool frozen() const noexcept { return frozen_; }

    struct Line {
        std::string text;  ///< UTF-8
        bool emphasized = false;
    };
    /// The screen: `height` lines, each at most `width` characters.
    [[nodiscard]] std::vector<Line> lines(std::size_t width, std::size_t height);

private:
    struct Row {
        std::uint64_t id = 0;
        std::vector<std::string> cells;
        double order = 0;  // by the column that the table is sorted by
        std::string text_order;
    };
    struct Screen {
        std::string table;
        std::string of_field;  // only rows whose field `of_field` is `of_id`; empty: all rows
        std::uint64_t of_id = 0;
        std::string of_name;
        std::size_t sort = 0;  // column
        bool reverse = false;
        std::size_t selected = 0;
        std::size_t first = 0;  // row at the top
    };

    [[nodiscard]] Screen& screen() noexcept { return screens_.back(); }
    [[nodiscard]] const ShownTable* table() const noexcept;
    [[nodiscard]] std::vector<Row> rows() const;
    void show(std::string_view table);
    void enter();
    void remember_busy();
    [[nodiscard]] std::string sparkline(std::uint64_t worker) const;

    std::optional<statistics::Snapshot> before_;
    std::optional<statistics::Snapshot> now_;
    std::vector<ShownTable> shown_;
    std::map<std::uint64_t, std::deque<double>> busy_;  // by worker: its share at the last looks
    std::vector<Screen> screens_;                       // the last one is shown; the others lie behind it
    bool totals_ = false;
    bool frozen_ = false;
    bool quits_ = false;
};

}  // namespace pollcore::stat
