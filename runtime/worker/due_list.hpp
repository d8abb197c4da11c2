// A list of objects that have something due. Each stands there once, and gets its turn in a part of the step.
//
// Thread safety: the worker's alone.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace pollcore {

/// An object's own note of whether it stands in its DueList.
class Due {
public:
    [[nodiscard]] bool enter() noexcept { return !std::exchange(in_, true); }
    void leave() noexcept { in_ = false; }
    [[nodiscard]] bool in() const noexcept { return in_; }

private:
    bool in_ = false;
};

/// T has a member `due`, a Due. Only make_room() allocates.
template <class T>
class DueList {
public:
    enum class Then : unsigned char {
        stay,
        leave,
        gone,  ///< it has left by itself, and may be another thread's already
    };

    /// Makes room for so many objects in all. Throws std::bad_alloc.
    void make_room(std::size_t objects) { items_.reserve(objects); }
    void add(T& one) noexcept {
        if (one.due.enter()) {
            items_.push_back(&one);
        }
    }
    void remove(T& one) noexcept {
        if (one.due.in()) {
            std::erase(items_, &one);
            one.due.leave();
        }
    }
    [[nodiscard]] bool empty() const noexcept { return items_.empty(); }
    [[nodiscard]] const std::vector<T*>& items() const noexcept { return items_; }
    /// Gives each object its turn. Objects that are added meanwhile get theirs in the next step, so every step ends.
    template <class Turn>
    void turn(Turn&& turn_of) noexcept {
        std::size_t n = items_.size();
        for (std::size_t i = 0; i < n;) {
            const Then then = turn_of(*items_[i]);
            if (then == Then::stay) {
                ++i;
                continue;
            }
            if (then == Then::leave) {
                items_[i]->due.leave();
            }
            items_[i] = items_[--n];
            items_[n] = items_.back();
            items_.pop_back();
        }
    }

private:
    std::vector<T*> items_;
};

}  // namespace pollcore
