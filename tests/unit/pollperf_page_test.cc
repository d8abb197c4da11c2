// The page that shows pollperf's documents: what it is made of. tests/system/perf_report.py looks at it in a browser.
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "pollperf/page/page.hpp"

namespace pollcore::perf {
namespace {

using Json = nlohmann::ordered_json;

Json document(const std::string& program = "pollperf lat") {
    return {{"program", program}, {"version", "0"}, {"format", 2}, {"results", Json::array()}};
}

std::string page_of(const std::vector<Json>& documents, std::string_view title = "a title") {
    return page(documents, title);
}

std::string between(const std::string& text, const std::string& begin, const std::string& end) {
    const std::size_t from = text.find(begin);
    const std::size_t to = text.find(end, from + begin.size());
    if (from == std::string::npos || to == std::string::npos) {
        ADD_FAILURE() << "nothing between " << begin << " and " << end;
        return {};
    }
    return text.substr(from + begin.size(), to - from - begin.size());
}
std::string data_of(const std::string& page) {
    return between(page, "<script type=\"application/json\" id=\"data\">", "</script>");
}
std::size_t count(const std::string& text, std::string_view what) {
    std::size_t found = 0;
    for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) {
        ++found;
    }
    return found;
}
/// Why there is no page of these documents.
std::string refusal(const std::vector<Json>& documents) {
    try {
        static_cast<void>(page_of(documents));
    } catch (const std::invalid_argument& error) {
        return error.what();
    }
    ADD_FAILURE() << "there is a page";
    return {};
}

TEST(PollperfPage, HasTheDocumentsInTheirOrder) {
    const std::vector<Json> documents = {document("pollperf lat"), document("pollperf bw"), document("pollperf-mesh")};
    EXPECT_EQ(Json::parse(data_of(page_of(documents))), Json(documents));
}

TEST(PollperfPage, NoStringOfADocumentEndsTheScript) {
    Json hostile = document();
    hostile["command"] = "</script><script>alert(1)</script><!-- <script> \xe2\x80\xa8 \" \\ &lt;";
    hostile["</script>"] = "a key";
    const std::string with = page_of({hostile});
    EXPECT_EQ(data_of(with).find('<'), std::string::npos);
    EXPECT_EQ(Json::parse(data_of(with)), Json::array({hostile}));
    for (const std::string_view what : {"<script", "</script", "<!--"}) {
        EXPECT_EQ(count(with, what), count(page_of({document()}), what)) << what;
    }
}

TEST(PollperfPage, ATitleIsText) {
    const std::string text = page_of({document()}, "</title><script>alert(1)</script> & {{data}}");
    EXPECT_EQ(between(text, "<title>", "</title>"),
              "&lt;/title&gt;&lt;script&gt;alert(1)&lt;/script&gt; &amp; {{data}}");
    EXPECT_EQ(Json::parse(data_of(text)), Json::array({document()}));
}

TEST(PollperfPage, BytesThatAreNoTextAreReplaced) {
    Json broken = document();
    broken["command"] = "a\xff z";
    EXPECT_EQ(Json::parse(data_of(page_of({broken})))[0]["command"], "a\xef\xbf\xbd z");
}

TEST(PollperfPage, IsWhole) {
    const std::string text = page_of({document()});
    EXPECT_TRUE(text.starts_with("<!DOCTYPE html>"));
    EXPECT_TRUE(text.ends_with("</html>\n"));
    for (const std::string_view what : {"{{style}}", "{{library}}", "{{script}}", "{{title}}", "{{data}}"}) {
        EXPECT_EQ(text.find(what), std::string::npos) << what;
    }
    for (const std::string_view what : {"// https://d3js.org v", "Copyright 2010-2017 Mike Bostock",
                                        "Redistributions in binary form", "prefers-color-scheme: dark"}) {
        EXPECT_NE(text.find(what), std::string::npos) << what;
    }
}

TEST(PollperfPage, NeedsNoOtherFile) {
    const std::string text = page_of({document()});
    EXPECT_NE(text.find("content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'\""),
              std::string::npos);
    for (const std::string_view what : {"<script src", "<link", "<img", "<iframe", "@import", "url("}) {
        EXPECT_EQ(text.find(what), std::string::npos) << what;
    }
}

TEST(PollperfPage, NamesTheDocumentThatIsNoneOfPollperf) {
    Json other = document("fio");
    EXPECT_EQ(refusal({document(), other}), "document 2 of 2 cannot be shown: its `program` is not pollperf");
    other.erase("program");
    EXPECT_EQ(refusal({other}), "document 1 of 1 cannot be shown: its `program` is not pollperf");
    other["program"] = 7;
    EXPECT_EQ(refusal({other}), "document 1 of 1 cannot be shown: its `program` is not pollperf");
    EXPECT_EQ(refusal({document(), Json::array(), document()}),
              "document 2 of 3 cannot be shown: it is no JSON object");
}

TEST(PollperfPage, RefusesOtherFormats) {
    Json other = document();
    other["format"] = 1;
    EXPECT_EQ(refusal({other}), "document 1 of 1 cannot be shown: its `format` is 1, and only 2 can be shown");
    other["format"] = "2";
    EXPECT_EQ(refusal({other}), "document 1 of 1 cannot be shown: it has no `format`");
    other.erase("format");
    EXPECT_EQ(refusal({other}), "document 1 of 1 cannot be shown: it has no `format`");
}

TEST(PollperfPage, NeedsADocument) {
    EXPECT_EQ(refusal({}), "a page needs a document");
}

}  // namespace
}  // namespace pollcore::perf
