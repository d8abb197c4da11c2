// The answer to a command, which another thread may make later.
//
// Thread safety: any thread. One thread carries the command out; another thread waits for the answer.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace pollcore::daemon {

using ControlJson = nlohmann::ordered_json;

/// In ASCII.
[[nodiscard]] std::string text_of(const ControlJson& value);
/// The texts of answers (common/control_wire.hpp). `result` is JSON.
[[nodiscard]] std::string answer_around(const std::string& result);
[[nodiscard]] std::string error_text(std::string_view code, std::string_view why);

class ControlAnswer {
public:
    /// `tell` is called once, when the answer is there, by the thread that makes it. It must not wait.
    explicit ControlAnswer(std::function<void()> tell) : tell_(std::move(tell)) {}
    ControlAnswer(const ControlAnswer&) = delete;
    ControlAnswer& operator=(const ControlAnswer&) = delete;

    // ---- For the thread that carries the command out ----

    /// Call this before the command is carried out on a thread that may come late. Returns false if nobody waits any
    /// more: then the command must not be carried out.
    [[nodiscard]] bool begin() noexcept;
    /// Ends with a result.
    void done(const ControlJson& result);
    /// `make` makes the answer's text, by answer_around(). It runs on the thread that waits.
    void done_by(std::function<std::string()> make);
    /// Ends with an error.
    void fail(std::string_view why, std::string_view code = "refused");

    // ---- For the thread that waits ----

    enum class Given : std::uint8_t {
        up,     ///< the command has not begun, and will not
        begun,  ///< the command is being carried out
        late,   ///< the answer is there
    };
    /// The waiting thread waits no longer.
    [[nodiscard]] Given give_up() noexcept;
    /// The answer's text, once.
    [[nodiscard]] std::optional<std::string> take();

private:
    const std::function<void()> tell_;
    std::mutex mutex_;
    bool begun_ = false;
    bool given_up_ = false;
    std::function<std::string()> text_;
};

}  // namespace pollcore::daemon
