//! CEL expressions: their values, their faults and their limits.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use restow_schema::cel::{EvalError, PER_CALL_LIMIT, Program};
use serde_json::{Value, json};

fn evaluate(expression: &str) -> Result<Value, EvalError> {
    let object = json!({"name": "web", "replicas": 3, "ratio": 0.5, "tags": ["a", "b"], "labels": {"app": "x", "a.b": "y"},
        "items": [{"k": "a", "v": 1}, {"k": "b", "v": 2}], "none": null});
    let program =
        Program::compile(expression, &["object", "oldObject"]).unwrap_or_else(|error| panic!("{expression}: {error}"));
    program.evaluate(&[Some(&object), None], PER_CALL_LIMIT).value
}

#[test]
fn cel_expressions_have_the_expected_values() {
    let cases = [
        ("1 + 2 * 3 - 4 / 2 % 3", json!(5)),
        ("-5 / 2", json!(-2)),
        ("1.5 + 1.5", json!(3.0)),
        ("'a' + \"b\" + '''c'''", json!("abc")),
        (r"r'\d' + '\n\u00e9\x41'", json!("\\d\n\u{e9}A")),
        ("true ? 1 : 2", json!(1)),
        ("1 < 2 && 2 <= 2 && 3.0 > 2 && 1u < 2", json!(true)),
        ("false && (1 / 0 == 1)", json!(false)),
        ("(1 / 0 == 1) || true", json!(true)),
        ("object.name == 'web' && object.replicas >= 3", json!(true)),
        ("has(object.name) && !has(object.missing)", json!(true)),
        ("object.tags.all(t, t.size() == 1) && object.tags.exists(t, t == 'b')", json!(true)),
        ("object.items.exists_one(i, i.v > 1)", json!(true)),
        ("object.items.map(i, i.v * 2)", json!([2, 4])),
        ("object.items.map(i, i.v > 1, i.k)", json!(["b"])),
        ("object.items.filter(i, i.k == 'a').size()", json!(1)),
        ("object.labels.all(k, object.labels[k] != '')", json!(true)),
        ("object.labels.all(k, v, k != v)", json!(true)),
        ("[1, 2, 3].transformList(i, v, i + v)", json!([1, 3, 5])),
        ("{'a': 1}.transformMap(k, v, v + 1)", json!({"a": 2})),
        ("object.?missing.?deep.orValue('d')", json!("d")),
        ("object.?name.optMap(n, n + '!').orValue('')", json!("web!")),
        ("object.tags[?5].hasValue()", json!(false)),
        ("[?object.?missing, 'x']", json!(["x"])),
        ("'b' in object.tags && 'app' in object.labels && !(1 in [2])", json!(true)),
        ("type(object.replicas) == int && type('') == string", json!(true)),
        ("int('42') + int(3.9) + int(2u)", json!(47)),
        ("string(1) + string(true) + string(1.5)", json!("1true1.5")),
        ("'abc'.contains('b') && 'abc'.startsWith('a') && 'abc'.endsWith('c')", json!(true)),
        ("'abc'.matches('^[a-c]+$')", json!(true)),
        ("'a,b,c'.split(',').join('-')", json!("a-b-c")),
        ("'hello'.substring(1, 3) + 'hello'.charAt(0) + 'AB'.lowerAscii() + ' x '.trim()", json!("elhabx")),
        ("'hello'.indexOf('l') + 'hello'.lastIndexOf('l')", json!(5)),
        ("'aaa'.replace('a', 'b', 2)", json!("bba")),
        ("'%s is %d, %.2f, %x'.format(['a', 5, 1.239, 255])", json!("a is 5, 1.24, ff")),
        (
            "'%s %s %e'.format([['a', 'b'], {'k': duration('1s')}, 1234.5])",
            json!("[\"a\", \"b\"] {\"k\":duration(\"1s\")} 1.234500\u{202f}×\u{202f}10⁰³"),
        ),
        ("sign(quantity('-5')) == -1 && optional.none().orValue(1) == 1", json!(true)),
        ("'a1b22'.findAll('[0-9]+')", json!(["1", "22"])),
        ("[3, 1, 2].sort() == [1, 2, 3] && [1, 2].sum() == 3 && [1, 5].max() == 5 && [1, 2].isSorted()", json!(true)),
        (
            "[1, 1, 2].distinct().size() == 2 && [[1], [2]].flatten() == [1, 2] && lists.range(3) == [0, 1, 2]",
            json!(true),
        ),
        ("sets.contains([1, 2], [2]) && sets.equivalent([1], [1, 1]) && !sets.intersects([1], [2])", json!(true)),
        ("duration('1h30m').getMinutes() == 90 && duration('1m') < duration('2m')", json!(true)),
        (
            "timestamp('2024-01-02T03:04:05Z').getHours() == 3 && timestamp('2024-01-01T00:00:00Z').getFullYear() == 2024",
            json!(true),
        ),
        ("timestamp('2024-01-01T01:00:00Z') - timestamp('2024-01-01T00:00:00Z') == duration('1h')", json!(true)),
        ("quantity('1Gi').isGreaterThan(quantity('500M')) && quantity('1k').asInteger() == 1000", json!(true)),
        (
            "isQuantity('1e3') && isQuantity('-.5Ki') && !isQuantity('') && !isQuantity('1.2.3') && !isQuantity('1KB')",
            json!(true),
        ),
        ("quantity('1.5').add(quantity('500m')).compareTo(quantity('2')) == 0 && !isQuantity('x')", json!(true)),
        ("ip('10.0.0.1').family() == 4 && cidr('10.0.0.0/8').containsIP('10.1.2.3') && !isIP('x')", json!(true)),
        (
            "cidr('10.0.0.0/8').containsCIDR('10.1.0.0/16') && cidr('10.0.0.1/8').masked().ip() == ip('10.0.0.0')",
            json!(true),
        ),
        (
            "url('https://a.example:80/p?q=1').getHostname() + url('https://a.example:80/p?q=1').getPort()",
            json!("a.example80"),
        ),
        ("isURL('https://x') && url('/path?x=1&x=2').getQuery()['x'] == ['1', '2']", json!(true)),
        ("semver('1.2.3').isLessThan(semver('1.10.0')) && isSemver('v1.2', true) && !isSemver('v1.2')", json!(true)),
        (
            "format.dns1123Label().validate('abc') == optional.none() && format.dns1123Label().validate('A').hasValue()",
            json!(true),
        ),
        ("{'a': 1, 'b': 2}['b'] + {'a': 1}.size()", json!(3)),
        ("object.none == null", json!(true)),
        ("b'abc'.size() == 3 && bytes('a') == b'a'", json!(true)),
    ];
    for (expression, expected) in cases {
        assert_eq!(evaluate(expression), Ok(expected), "{expression}");
    }
}

#[test]
fn evaluation_errors_have_the_messages_of_cel() {
    let cases = [
        ("1 / 0", "division by zero"),
        ("9223372036854775807 + 1", "integer overflow"),
        ("object.missing", "no such key: missing"),
        ("object.tags[7]", "index out of bounds: 7"),
        ("object.name + 1", "no such overload"),
        ("object.labels['z']", "no such key: z"),
        ("optional.none().value()", "optional.none() dereference"),
    ];
    for (expression, expected) in cases {
        assert_eq!(evaluate(expression).map_err(|error| error.to_string()), Err(expected.to_string()), "{expression}");
    }
}

#[test]
fn compile_errors_show_their_position() {
    let cases = [
        (
            "object.x &&",
            "ERROR: <input>:1:12: Syntax error: mismatched input '<EOF>' expecting an expression\n | object.x &&\n | ...........^",
        ),
        ("nothing", "ERROR: <input>:1:1: undeclared reference to 'nothing' (in container '')\n | nothing\n | ^"),
        (
            "1 == 'a'",
            "ERROR: <input>:1:3: found no matching overload for '_==_' applied to '(int, string)'\n | 1 == 'a'\n | ..^",
        ),
        (
            "'a'.size(1)",
            "ERROR: <input>:1:9: found no matching overload for 'size' applied to 'string.(int)'\n | 'a'.size(1)\n | ........^",
        ),
        ("int('x') == 1", "type conversion error from 'string' to 'int'"),
        (
            "'%d'.format([1, 2])",
            "ERROR: <input>:1:13: too many arguments supplied to string.format (expected 1, got 2)\n | '%d'.format([1, 2])\n | ............^",
        ),
        ("'a'.matches('(')", "ERROR: <input>:1:13: invalid matches argument\n | 'a'.matches('(')\n | ............^"),
        ("frob(1)", "ERROR: <input>:1:5: undeclared reference to 'frob' (in container '')\n | frob(1)\n | ....^"),
    ];
    for (expression, expected) in cases {
        assert_eq!(Program::compile(expression, &["object"]).map(|_| ()), Err(expected.to_string()), "{expression}");
    }
}

#[test]
fn an_evaluation_stops_at_its_cost_limit() {
    let many: Vec<u32> = (0..2000).collect();
    let object = json!({"l": many, "s": "a".repeat(100_000)});
    for expression in [
        "object.l.all(a, object.l.all(b, object.l.all(c, a + b + c >= 0)))",
        "object.l.map(a, object.l.map(b, object.l)).size() > 0",
        "object.l.all(a, !object.s.matches('(a|aa)+b' + string(a)))",
        "[1,2,3,4,5,6,7,8,9].all(a, object.l.all(b, object.l.all(c, c >= 0)))",
    ] {
        let program = Program::compile(expression, &["object"]).unwrap();
        let evaluated = program.evaluate(&[Some(&object)], PER_CALL_LIMIT);
        assert_eq!(evaluated.value, Err(EvalError::CostExceeded), "{expression}");
    }
    let deep = format!("{}1{}", "(".repeat(10_000), ")".repeat(10_000));
    let negated = format!("{}true", "!".repeat(10_000));
    let sum = vec!["1"; 20_000].join("+");
    let nested = format!("{}1{}", "[".repeat(5_000), "]".repeat(5_000));
    let long = "a".repeat(1_000_000);
    for expression in [&deep, &negated, &sum, &nested, &long] {
        assert!(Program::compile(expression, &["object"]).is_err());
    }
}

/// What comes of compiling and evaluating an expression on a thread with half the stack that threads have.
fn on_a_small_stack(expression: String) -> Result<Result<Value, EvalError>, String> {
    let run = move || {
        let program = Program::compile(&expression, &["object"])?;
        Ok(program.evaluate(&[Some(&json!({"a": 1}))], PER_CALL_LIMIT).value)
    };
    std::thread::Builder::new().stack_size(1 << 20).spawn(run).unwrap().join().unwrap()
}

#[test]
fn deep_expressions_are_refused_before_they_fill_the_stack() {
    let chain = |first: &str, operator: &str, times: usize| format!("{first}{}", format!("{operator}1").repeat(times));
    let spine =
        ["*", "+", "==", "&&", "||"].iter().fold("1".to_string(), |first, operator| chain(&first, operator, 512));
    let nested = (0..60).fold("1".to_string(), |inner, _| format!("({})", chain(&inner, "+", 200)));
    let steps = |step: &str| format!("object{}", step.repeat(2_000));
    let refused = [
        format!("{}a", ".".repeat(99_999)),
        ".(1)".to_string(),
        "..object".to_string(),
        spine,
        nested,
        chain("1", "-", 250),
        steps(".a"),
        steps(".?a"),
        steps("['a']"),
        steps(".size()"),
        steps(".map(x, x)"),
        format!("[1]{}", ".map(x, [[[[[[[[[[[[[[[[x]]]]]]]]]]]]]]]])".repeat(200)),
        format!("[1]{}", ".map(x, {x: x})".repeat(100)),
        steps(".optMap(x, x)"),
    ];
    for expression in refused {
        let start: String = expression.chars().take(60).collect();
        assert!(on_a_small_stack(expression).is_err(), "{start}");
    }
}

#[test]
fn expressions_of_the_maximum_depth_are_evaluated() {
    let terms = |term: &str, operator: &str, count: usize| vec![term; count].join(operator);
    let cases = [
        (terms("false", " || ", 5_000), Ok(json!(false))),
        (terms("true", " && ", 5_000), Ok(json!(true))),
        (terms("1", " + ", 250), Ok(json!(250))),
        (format!("1 + {}", terms("1", " * ", 249)), Ok(json!(2))),
        (format!("{}true", "!".repeat(60)), Ok(json!(true))),
        (format!("{}1{}", "[".repeat(60), "]".repeat(60)), Ok((0..60).fold(json!(1), |inner, _| json!([inner])))),
        (format!("object.a{}", ".a".repeat(240)), Err(EvalError::NoSuchOverload)),
        (format!("[1]{}", ".map(x, x)".repeat(240)), Ok(json!([1]))),
        (format!("optional.of(1){}.value()", ".optMap(x, x)".repeat(240)), Ok(json!(1))),
        (format!("[1]{}", ".map(x, [x])".repeat(198)), Ok((0..199).fold(json!(1), |inner, _| json!([inner])))),
        (format!("[1]{}", ".map(x, [x])".repeat(210)), Err(EvalError::CostExceeded)),
        (format!("[1]{}", ".map(x, [dyn([[[[[[[[x]]]]]]]])])".repeat(230)), Err(EvalError::CostExceeded)),
        (
            format!("optional.of(1){}", ".optMap(x, dyn(optional.of(optional.of(optional.of(x)))))".repeat(220)),
            Err(EvalError::CostExceeded),
        ),
        (".object.a".to_string(), Ok(json!(1))),
    ];
    for (expression, expected) in cases {
        let start: String = expression.chars().take(60).collect();
        assert_eq!(on_a_small_stack(expression), Ok(expected), "{start}");
    }
}

/// Small texts that make large values, the size of which is known before they are made.
#[test]
fn the_size_of_cel_values_is_limited() {
    let many: Vec<u32> = (0..2000).collect();
    let object = json!({"l": many, "s": "a".repeat(100_000)});
    let doubled = format!("[0]{}", ".map(x, [x, x])".repeat(100));
    for expression in [
        "object.l.map(a, object.s).join('').size() > 0",
        "object.l.map(a, object.s).join(object.s).size() > 0",
        "object.s.replace('a', object.s).size() > 0",
        "object.s.replace('', object.s).size() > 0",
        "object.s.replace('a', object.s, 90000).size() > 0",
        "'%s'.format([object.l.map(a, object)]).size() > 0",
        "'%s'.format([{'a': object.l.map(a, object)}]).size() > 0",
        "object.l.all(a, '%s%s'.format([object.s, object.s]) != '')",
        "object.l.map(a, object.l).map(a, object.l.map(b, object.l)).size() > 0",
        "object.l.map(a, object)",
        "object.l.map(a, lists.range(100000)).size() > 0",
        "[object.l.map(a, object.l)].flatten(2).size() > 0",
        &format!("{doubled} == {doubled}"),
        &format!("'%s'.format([{doubled}]) == ''"),
        &format!("{doubled}.flatten(100).size() > 0"),
        &format!("[{doubled}, {doubled}].distinct().size() > 0"),
        &doubled,
    ] {
        let program = Program::compile(expression, &["object"]).unwrap();
        let evaluated = program.evaluate(&[Some(&object)], PER_CALL_LIMIT);
        assert_eq!(evaluated.value, Err(EvalError::CostExceeded), "{expression}");
    }
    let expression = "object.l.map(a, string(a)).join(', ').size() > 0 && object.s.replace('a', 'bc').size() == 200000";
    let program = Program::compile(expression, &["object"]).unwrap();
    assert_eq!(program.evaluate(&[Some(&object)], PER_CALL_LIMIT).value, Ok(json!(true)));
}

/// Each of these compared every value with every other one: billions of comparisons for some ten thousand values.
#[test]
fn values_in_collections_are_found_by_hash() {
    let many: Vec<u32> = (0..60_000).collect();
    let object = json!({"l": many});
    for expression in [
        "object.l.distinct().size() == 60000",
        "object.l.transformMap(i, v, v)[59999] == 59999",
        "object.l.transformMap(i, v, v).size() == 60000",
        "[object.l.map(v, v), object.l.map(v, v)].distinct().size() == 1",
    ] {
        let program = Program::compile(expression, &["object"]).unwrap();
        assert_eq!(program.evaluate(&[Some(&object)], 10 * PER_CALL_LIMIT).value, Ok(json!(true)), "{expression}");
    }
    let cases = [
        ("[1, dyn(1.0), dyn(1u), 2].distinct().size() + ['a', 'a', 'b'].distinct().size()", json!(4)),
        ("[[1], [2], [1]].distinct().size() + [{'a': [1]}, {'a': [1]}].distinct().size()", json!(3)),
        ("sets.equivalent([dyn(1), dyn(2.0), dyn(2)], [dyn(2u), dyn(1)])", json!(true)),
        ("sets.contains([dyn(1), dyn('a')], [dyn('a'), dyn(1.0)]) && !sets.intersects([1], [2])", json!(true)),
        ("{1: 'a', 2: 'b'} == {2: 'b', 1: 'a'} && {'a': [1]} != {'a': [2]}", json!(true)),
        ("[quantity('1'), quantity('1000m')].distinct().size()", json!(1)),
        ("[1, 2].first().value() + [1, 2].last().value()", json!(3)),
        ("[].first().hasValue() || [].last().hasValue()", json!(false)),
    ];
    for (expression, expected) in cases {
        assert_eq!(evaluate(expression), Ok(expected), "{expression}");
    }
}

/// Allows what is done by who is called so.
struct Allowing(&'static str);

impl restow_schema::cel::Authorizer for Allowing {
    fn decide(&self, question: &restow_schema::cel::AuthorizationCheck) -> restow_schema::cel::AuthorizationDecision {
        let asked = format!(
            "{}{} {}/{}/{} {}/{}",
            question.service_account.as_ref().map(|(_, name)| format!("{name}: ")).unwrap_or_default(),
            question.verb,
            question.group,
            question.resource,
            question.subresource,
            question.namespace,
            question.name
        );
        let asked = question.path.as_ref().map_or(asked, |path| format!("{} {path}", question.verb));
        restow_schema::cel::AuthorizationDecision { allowed: asked == self.0, reason: asked }
    }
}

#[test]
fn expressions_use_the_authorizer() {
    let check = |expression: &str, expected: &'static str| {
        let program = Program::compile(expression, &["object", "authorizer", "authorizer.requestResource"]).unwrap();
        let resource = restow_schema::cel::AuthorizationCheck { resource: "pods".into(), ..Default::default() };
        let object = json!({"name": "x"});
        let evaluated = program.evaluate_asking(&[Some(&object)], (&Allowing(expected), &resource), PER_CALL_LIMIT);
        assert_eq!(evaluated.value.unwrap(), json!(true), "{expression}");
    };
    check("authorizer.requestResource.check('get').allowed()", "get /pods/ /");
    check("authorizer.group('apps').resource('deployments').check('list').allowed()", "list apps/deployments/ /");
    check(
        "authorizer.group('').resource('pods').subresource('log').namespace('n').name(object.name).check('get').allowed()",
        "get /pods/log n/x",
    );
    check("authorizer.path('/healthz').check('get').allowed()", "get /healthz");
    check(
        "authorizer.serviceAccount('n', 'robot').group('').resource('pods').check('get').reason().startsWith('robot')",
        "",
    );
    assert!(Program::compile("authorizer.check('get')", &["authorizer"]).is_err());
    assert!(Program::compile("authorizer.group(1)", &["authorizer"]).is_err());
}
