// Reads arbitrary bytes as commands of pollctl, and as answers of a daemon. Whatever comes, the result is a command
// within its limits, or a refusal that a terminal can show. POLLCORE_FUZZ_SECONDS sets the duration. If a test fails,
// it prints its seed.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <random>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "common/control_wire.hpp"
#include "pollcored/control_command.hpp"
#include "pollctl/answer_view.hpp"
#include "pollctl/ask_daemon.hpp"

namespace pollcore {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::array<std::string_view, 26> kWords{"{",
                                                  "}",
                                                  "[",
                                                  "]",
                                                  ":",
                                                  ",",
                                                  "\"protocol\": 1",
                                                  "\"command\"",
                                                  "\"list\"",
                                                  "\"kind\"",
                                                  "\"workers\"",
                                                  "\"disconnect-process\"",
                                                  "\"process\"",
                                                  "\"grace_ms\"",
                                                  "\"disconnect-queue-pair\"",
                                                  "\"queue_pair\"",
                                                  "\"device\"",
                                                  "\"set-log-level\"",
                                                  "\"level\"",
                                                  "\"debug\"",
                                                  "17",
                                                  "-1",
                                                  "1e99",
                                                  "\"\\u0000\"",
                                                  "null",
                                                  "\"result\""};

constexpr std::array<std::string_view, 7> kSound{
    R"({"protocol": 1, "command": "list", "kind": "queue-pairs"})",
    R"({"protocol": 1, "command": "disconnect-process", "process": 7, "grace_ms": 5000})",
    R"({"protocol": 1, "command": "disconnect-queue-pair", "queue_pair": "17", "device": "soft0"})",
    R"({"protocol": 1, "command": "set-log-level", "level": "debug"})",
    R"({"protocol": 1, "result": {"rows": [{"a": 1, "b": "x"}], "c": [1, 2], "d": null}})",
    R"({"protocol": 1, "result": {"rows\n": [{"a\u001b[2J": "\u009b", "b": ["\u0007"]}], "c": "\u0000x"}})",
    R"({"protocol": 1, "error": {"code": "refused", "text": "a\u001b[2Jb\r"}})"};

class Texts {
public:
    explicit Texts(unsigned seed) : random_(seed) {}

    std::string next() {
        std::string text;
        if (random_() % 3 == 0) {
            for (std::size_t n = random_() % 40; n != 0; --n) {
                text += kWords[random_() % kWords.size()];
            }
        } else {
            text = kSound[random_() % kSound.size()];
        }
        for (std::size_t n = random_() % 4; n != 0 && !text.empty(); --n) {
            const std::size_t at = random_() % text.size();
            switch (random_() % 5) {
                case 0: text[at] = static_cast<char>(random_()); break;
                case 1: text.erase(at, 1 + random_() % 8); break;
                case 2: text.insert(at, kWords[random_() % kWords.size()]); break;
                case 3: text.insert(at, random_() % 300, static_cast<char>(random_())); break;
                default: text.resize(at); break;
            }
        }
        return text;
    }

private:
    std::mt19937 random_;
};

bool is_printable(std::string_view text) {
    return std::all_of(text.begin(), text.end(), [](char c) { return (c >= ' ' && c <= '~') || c == '\n'; });
}

template <class Try>
void fuzz(Try&& attempt) {
    const char* const seconds = std::getenv("POLLCORE_FUZZ_SECONDS");
    const unsigned seed = std::random_device()();
    SCOPED_TRACE("seed " + std::to_string(seed));
    Texts texts(seed);
    const auto end = Clock::now() + std::chrono::seconds(seconds != nullptr ? std::atoi(seconds) : 1);
    std::uint64_t tried = 0;
    std::uint64_t taken = 0;
    while (Clock::now() < end && !testing::Test::HasFailure()) {
        taken += attempt(texts.next());
        ++tried;
    }
    EXPECT_GT(taken, 0u) << "nothing of " << tried << " texts was accepted";
    EXPECT_LT(taken, tried);
}

TEST(ControlFuzz, EveryTextIsACommandOrARefusal) {
    fuzz([](const std::string& text) {
        try {
            const daemon::ControlCommand command = daemon::parse_command(text);
            EXPECT_LE(command.grace, daemon::kGraceMax) << text;
            EXPECT_LE(command.queue_pair.size(), 256u) << text;
            EXPECT_LE(text.size(), control_wire::kCommandMax);
            return true;
        } catch (const daemon::BadCommand& bad) {
            EXPECT_TRUE(is_printable(bad.what())) << bad.what();
            return false;
        }
    });
}

TEST(ControlFuzz, EveryAnswerIsShownHarmlessOrRefused) {
    fuzz([](const std::string& text) {
        try {
            EXPECT_TRUE(is_printable(ctl::view_of(ctl::result_of(text, "/s")))) << text;
            return true;
        } catch (const std::runtime_error& refused) {
            EXPECT_TRUE(is_printable(ctl::safe(refused.what()))) << refused.what();
            return false;
        }
    });
}

}  // namespace
}  // namespace pollcore
