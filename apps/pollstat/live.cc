#include "live.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <clocale>

#define NCURSES_NOMACROS  // else curses defines macros such as `timeout`
#include <curses.h>

#include "choice.hpp"
#include "live_model.hpp"
#include "pollcore/error.hpp"

namespace pollcore::stat {
namespace {

Key key_of(int read) {
    switch (read) {
        case KEY_UP:
        case 'k': return Key::up;
        case KEY_DOWN:
        case 'j': return Key::down;
        case KEY_PPAGE: return Key::page_up;
        case KEY_NPAGE: return Key::page_down;
        case KEY_ENTER:
        case '\n':
        case '\r': return Key::enter;
        case KEY_BACKSPACE:
        case '\b':
        case '\x7f': return Key::back;
        case 's': return Key::sort;
        case 'r': return Key::reverse;
        case 't': return Key::totals;
        case 'f': return Key::freeze;
        case '1': return Key::workers;
        case '2': return Key::sessions;
        case '3': return Key::queue_pairs;
        case '4': return Key::devices;
        case '5': return Key::processes;
        case '6': return Key::runtime;
        case '7': return Key::events;
        case '8': return Key::stalls;
        case '9': return Key::port_counters;
        case 'q': return Key::quit;
        default: return Key::none;
    }
}

/// The terminal belongs to curses during this object's life.
class Terminal {
public:
    Terminal() {
        if (::isatty(STDIN_FILENO) == 0 || ::isatty(STDOUT_FILENO) == 0) {
            throw Error(ENOTTY,
                        "the live view needs a terminal; --once prints the tables, --json prints them for programs");
        }
        std::setlocale(LC_ALL, "");  // NOLINT: for the blocks of the sparkline
        screen_ = ::newterm(nullptr, stdout, stdin);
        if (screen_ == nullptr) {
            throw Error(ENOTTY, "curses does not know this terminal (TERM)");
        }
        ::set_term(screen_);
        ::cbreak();
        ::noecho();
        ::keypad(stdscr, TRUE);
        ::curs_set(0);
    }
    ~Terminal() {
        ::endwin();
        ::delscreen(screen_);
    }
    Terminal(const Terminal&) = delete;
    Terminal& operator=(const Terminal&) = delete;

    static void draw(LiveModel& model) {
        ::erase();
        const auto lines = model.lines(static_cast<std::size_t>(COLS), static_cast<std::size_t>(LINES));
        for (std::size_t i = 0; i < lines.size(); ++i) {
            if (lines[i].emphasized) {
                ::attron(A_REVERSE);
            }
            ::mvaddstr(static_cast<int>(i), 0, lines[i].text.c_str());
            if (lines[i].emphasized) {
                ::attroff(A_REVERSE);
            }
        }
        ::refresh();
    }
    /// Waits for a key for this long.
    static Key wait(std::chrono::milliseconds most) {
        ::timeout(static_cast<int>(most.count()));
        return key_of(::getch());
    }

private:
    SCREEN* screen_ = nullptr;
};

}  // namespace

int live(const Options& options) {
    using Clock = std::chrono::steady_clock;
    const std::filesystem::path file = choose(options.runtime);
    LiveModel model;
    model.take(statistics::read_statistics(file));
    const Terminal terminal;
    auto next = Clock::now() + options.interval;
    while (!model.quits()) {
        Terminal::draw(model);
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now());
        model.press(Terminal::wait(std::max(left, std::chrono::milliseconds(0))));
        if (Clock::now() >= next) {
            next = Clock::now() + options.interval;
            model.take(statistics::read_statistics(file));
        }
    }
    return kExitOk;
}

}  // namespace pollcore::stat
