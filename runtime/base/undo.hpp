// Takes back the earlier steps of an action when a later one fails (D29).
//
// Thread safety: that of what it runs.
#pragma once

#include <utility>

namespace pollcore {

/// Runs `take_back` when it ends, unless keep() was called. `take_back` throws nothing, hence allocates nothing: an
/// allocation may be the step that has failed.
template <class F>
class [[nodiscard]] Undo {
public:
    explicit Undo(F take_back) noexcept : take_back_(std::move(take_back)) {}
    ~Undo() {
        if (!kept_) {
            take_back_();
        }
    }
    Undo(const Undo&) = delete;
    Undo& operator=(const Undo&) = delete;

    void keep() noexcept { kept_ = true; }

private:
    F take_back_;
    bool kept_ = false;
};

}  // namespace pollcore
