// The way back from what is done in several steps, of which each may fail.
//
// Thread safety: that of what it runs.
#pragma once

#include <utility>

namespace pollcore {

/// Takes back what was done so far, unless keep() has said that it stays. What it runs throws nothing, hence allocates
/// nothing: an allocation may be what has failed.
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
