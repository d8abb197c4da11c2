// A list of objects that have something to do later in the step. Each object is in the list at most once. The worker
// calls the objects in a fixed part of the step.
//
// Thread safety: only the worker's thread uses it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace pollcore {

/// A flag in the object. It is set while the object is in its DueList.
class Due {
public:
    [[nodiscard]] bool enter() noexcept { return !std::exchange(in_, true); }
    void leave() noexcept { in_ = false; }
    [[nodiscard]] bool in() const noexcept { return in_; }

private:
    bool in_ = false;
};

/// The list. T has a member `due`, a Due. Only make_room() allocates.
template <class T>
class DueList {
public:
    enum class Then : unsigned char {
        stay,
        leave,
        gone,  ///< like leave; due.leave() was called already, because the object may now belong to another thread
    };

    /// Makes room for `objects` objects in total. Throws std::bad_alloc.
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
    /// Calls `turn_of` for each object. Objects that are added meanwhile are called in the next step, so every step
    /// ends.
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
